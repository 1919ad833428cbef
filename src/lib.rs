//! lethe: long-term conversational memory, inside DuckDB.
//!
//! A *turn* is one thing one speaker said. Turns stand in the table `lethe.turns` of a *store*, an attached database, and
//! `memory_retrieve('a question', 5)` returns those that answer a question. What happens in between is
//!
//! ```text
//! query → encode → words, vectors → fuse → suppress → rerank → rows;  then learn
//! ```
//!
//! and `memory/retrieve.rs` reads like that line. The floors of the house, each importing only from those below it:
//!
//! ```text
//! function   SQL functions and settings: arguments in, rows out; the host's callbacks
//! memory     where the parts meet: synchronise, retrieve, learn, give feedback, forget
//! store      every SQL string, and the connection that borrows the running instance
//! index      segments of words, vectors and token states, in memory and saved in files
//! model      texts to states: the encoder, the reranker, ONNX Runtime
//! rank       pure functions: fusion, token evidence, suppression, clusters, codes
//! ```
//!
//! Everything the extension knows is in plain tables, so a memory is one file. What is held in memory is derived from them and
//! made anew whenever they say otherwise: a database file has a version that changes with every commit (`store::version`), each
//! session of a store a fingerprint, and each state a hash over all that it was computed from.
//!
//! The ideas are two papers'. "Beyond the Final Embedding" gives the token evidence (`rank::evidence`), the lethe paper the
//! clustered retrieval-induced forgetting (`rank::suppression`, `rank::cues`). Where the code departs from them, it says so at
//! the formula, and `docs/decisions.md` says why.

#[cfg(feature = "extension")]
pub mod error;
#[cfg(feature = "extension")]
pub mod function;
#[cfg(feature = "extension")]
pub mod index;
#[cfg(feature = "extension")]
pub mod memory;
#[cfg(feature = "extension")]
pub mod model;
pub mod rank;
#[cfg(feature = "extension")]
pub mod store;
