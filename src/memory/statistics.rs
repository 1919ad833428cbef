//! What there is to know of a store.

use std::path::Path;

use duckdb::Connection;

use super::engine::Store;
use super::sync::saved_bytes;
use crate::error::Result;
use crate::store::statistics::{Counts, counts};

/// A store in numbers.
pub struct Statistics {
    pub counts: Counts,
    /// The generation of the cue clusters.
    pub generation: i64,
    /// What last kept a retrieval from being learned from.
    pub learning_error: Option<String>,
    /// The segments of the index in this process; `None` while there are none, or while they are made.
    pub index_segments: Option<usize>,
    /// The bytes of the files it is saved in; `None` where none are saved.
    pub index_bytes: Option<u64>,
    /// What kept it from being read or saved.
    pub index_problems: Vec<String>,
}

pub fn statistics(connection: &Connection, store: &Store, cache: Option<&Path>) -> Result<Statistics> {
    let learning_error = store.learning()?.error.clone();
    // Locked for as long as turns are encoded, which nobody who asks for numbers wants to wait for.
    let index = store.shared.index.try_lock().ok();
    Ok(Statistics {
        counts: counts(connection, &store.database, &store.config.encoder.id)?,
        generation: store.cues(connection)?.generation,
        learning_error,
        index_segments: index.as_ref().and_then(|index| index.segments()),
        index_bytes: cache.map(|cache| saved_bytes(store, cache)),
        index_problems: index.map_or_else(Vec::new, |index| index.problems()),
    })
}
