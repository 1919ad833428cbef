//! Models: the encoder of texts, the optional reranker, and where their files are.

pub mod adapter;
pub mod directory;
pub mod encoder;
pub mod reranker;
pub mod runtime;
