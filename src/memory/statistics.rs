//! What there is to know of a store.

use std::path::Path;
use std::sync::Arc;

use duckdb::Connection;

use super::engine::Store;
use super::sync::saved_bytes;
use crate::error::Result;
use crate::rank::watch::Tally;
use crate::store::adapters::StoredAdapter;
use crate::store::statistics::{Counts, counts};

/// A store in numbers.
pub struct Statistics {
    pub counts: Counts,
    /// The generation of the cue clusters.
    pub generation: i64,
    /// The query adapter the store trained.
    pub adapter: Option<Arc<StoredAdapter>>,
    /// Questions with an answer that was used, which memory_adapt learns from.
    pub answered: usize,
    /// What came of what was learned of like questions, by the verdicts on answers it moved, and of suppression, by the reranker.
    pub of_order: Tally,
    pub of_suppression: Tally,
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
    let experience = store.experience(connection)?;
    Ok(Statistics {
        adapter: store.trained(connection)?,
        answered: experience.pasts().iter().filter(|past| past.was_answered()).count(),
        of_order: experience.of_order(),
        of_suppression: experience.of_suppression(),
        counts: counts(connection, &store.database, &store.config.encoder.id)?,
        generation: store.cues(connection)?.generation,
        learning_error,
        index_segments: index.as_ref().and_then(|index| index.segments()),
        index_bytes: cache.map(|cache| saved_bytes(store, cache)),
        index_problems: index.map_or_else(Vec::new, |index| index.problems()),
    })
}

impl Statistics {
    /// What of that which was learned is left out for doing harm, in words.
    pub fn left_out(&self) -> Vec<String> {
        let harm = |tally: &Tally, what: &str, judged: &str| {
            let Tally { occasions, mean, error } = tally;
            let text = || {
                format!(
                    "{what} is not applied: over the last {occasions} {judged} it cost {:.3} ± {error:.3} each",
                    -mean
                )
            };
            tally.harmful().then(text)
        };
        let saturated = self.counts.saturated;
        let saturation = || {
            let kinds = if saturated == 1 { "kind of question" } else { "kinds of question" };
            format!(
                "suppression is not applied for {saturated} {kinds}: more than half of the turns are suppressed there"
            )
        };
        [
            harm(&self.of_order, "what is known of like questions", "verdicts on answers that it moved,"),
            harm(&self.of_suppression, "suppression", "pools that it changed, of the reranker's first ten"),
            (saturated > 0).then(saturation),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
