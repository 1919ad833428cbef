//! What there is to know of a store.

use duckdb::Connection;

use super::engine::Store;
use crate::error::Result;
use crate::store::learning;
use crate::store::statistics::{Counts, counts};

/// A store in numbers.
pub struct Statistics {
    pub counts: Counts,
    /// The generation of the cue clusters.
    pub generation: i64,
    /// What last kept a retrieval from being learned from.
    pub learning_error: Option<String>,
}

pub fn statistics(connection: &Connection, store: &Store) -> Result<Statistics> {
    let learning_error = store.learning()?.error.clone();
    Ok(Statistics {
        counts: counts(connection, &store.database, &store.config.encoder.id)?,
        generation: learning::cues(connection, &store.database)?.generation,
        learning_error,
    })
}
