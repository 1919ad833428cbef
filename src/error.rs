//! Everything that can go wrong, a variant for each thing the user can do about it.

use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

/// What stopped a call. The SQL function's name is put in front where the error leaves the extension.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call itself is wrong: change it.
    #[error("{0}")]
    Argument(String),

    #[error("no database '{store}' is attached (attached: {attached}); ATTACH it first")]
    UnknownStore { store: String, attached: String },

    #[error(
        "database '{store}' is not a memory store: it has no table lethe.store; CALL memory_create(store := '{store}') makes one"
    )]
    NotAStore { store: String },

    #[error("database '{store}' is no memory store but already has a table lethe.{table}; rename or drop it first")]
    ForeignTable { store: String, table: String },

    #[error("store '{store}' has no table lethe.{table}; CALL memory_create(store := '{store}') makes it again, empty")]
    MissingTable { store: String, table: String },

    #[error("database '{store}' is attached READ_ONLY; {action} needs to write to it")]
    ReadOnly { store: String, action: &'static str },

    #[error("store '{store}' has schema version {found}, this extension reads and writes version {supported}; {hint}")]
    SchemaVersion { store: String, found: i64, supported: i64, hint: &'static str },

    #[error(
        "store '{store}' was encoded by {stored}, but lethe_model_directory holds {current}; SET lethe_model_directory to \
         that model, or CALL memory_create(store := '{store}', encoder := '…') to encode the store anew"
    )]
    EncoderMismatch { store: String, stored: String, current: String },

    #[error(
        "no retrieval '{0}' in any attached store that can be written: it is not known, or older than lethe_retrievals_kept allows"
    )]
    UnknownRetrieval(String),

    #[error("table lethe.{table} of store '{store}' holds {problem}")]
    Data { store: String, table: &'static str, problem: String },

    #[error("{what} not found: {path} does not exist; {hint}")]
    MissingFile { what: &'static str, path: PathBuf, hint: String },

    #[error("{what} at {path} cannot be used: {cause}; {hint}")]
    BrokenFile { what: &'static str, path: PathBuf, cause: String, hint: String },

    #[error(
        "interrupted: {stored} of {turns} turns are encoded and stored; memory_sync() or the next retrieval goes on from there"
    )]
    Interrupted { stored: usize, turns: usize },

    #[error("interrupted: nothing was changed; memory_adapt() starts from the beginning")]
    InterruptedTraining,

    #[error("the model failed: {0}")]
    Model(String),

    #[error(
        "no reranker is installed: lethe_reranker_directory is empty; point it at a cross-encoder's model directory, or leave rerank out"
    )]
    NoReranker,

    #[error("DuckDB: {0}")]
    DuckDb(#[from] duckdb::Error),

    #[error("the word index failed: {0}")]
    Words(#[from] tantivy::TantivyError),

    #[error(
        "the index saved at {file} cannot be used ({problem}); it is made anew from the tables, and may be deleted"
    )]
    Cache { file: String, problem: String },

    #[error("clustering the queries failed: {0}")]
    Clustering(String),

    #[error("the extension broke inside ({0}); please report it")]
    Internal(String),
}

impl Error {
    /// An argument that is not what it must be: `argument` was `got`, allowed is `allowed`.
    pub fn argument(argument: &str, got: impl std::fmt::Display, allowed: impl std::fmt::Display) -> Self {
        Self::Argument(format!("{argument} is {got}; allowed: {allowed}"))
    }
}
