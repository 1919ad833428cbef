//! Where the parts meet: a store's tables, its index and the models become retrieval, learning and forgetting.

pub mod adapt;
pub mod add;
pub mod create;
pub mod engine;
pub mod experience;
pub mod feedback;
pub mod forget;
pub mod hints;
pub mod interrupt;
pub mod knobs;
pub mod learn;
pub mod models;
pub mod precedents;
pub mod progress;
pub mod request;
pub mod rerank;
pub mod reset;
pub mod retrieve;
pub mod scope;
pub mod snapshot;
pub mod statistics;
pub mod sync;
pub mod text;

pub use engine::Engine;
