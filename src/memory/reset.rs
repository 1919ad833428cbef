//! Takes back what was learned.

use duckdb::Connection;

use super::engine::Store;
use crate::error::Result;
use crate::store::learning;
use crate::store::transaction;

/// What is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// Who was suppressed for which kind of question.
    Suppression,
    /// What was said of answers.
    Feedback,
    /// The questions, with what was found for them and what was said of it.
    Questions,
    /// The query adapter.
    Adapter,
    All,
}

impl Learned {
    pub const NAMES: [(&'static str, Self); 5] = [
        ("suppression", Self::Suppression),
        ("feedback", Self::Feedback),
        ("questions", Self::Questions),
        ("adapter", Self::Adapter),
        ("all", Self::All),
    ];

    /// The tables that hold it and nothing else.
    fn tables(self) -> &'static [&'static str] {
        match self {
            Self::Suppression => &["suppression"],
            Self::Feedback => &["feedback"],
            Self::Questions => &["feedback", "retrievals"],
            Self::Adapter => &["adapters"],
            Self::All => &["suppression", "feedback", "retrievals", "cues", "adapters"],
        }
    }
}

/// Takes it back, in one transaction. Returns the rows removed.
pub fn reset(connection: &Connection, store: &Store, learned: Learned) -> Result<usize> {
    store.database.require_writable("memory_reset")?;
    let _alone = store.learning()?;
    let removed = transaction(connection, || {
        let clear = |table: &&str| learning::clear(connection, &store.database, table);
        learned.tables().iter().map(clear).sum()
    })?;
    store.learned_anew()?;
    Ok(removed)
}

/// Takes back the suppression in one cluster, of the turns of one session, or both. Returns the entries removed.
pub fn reset_suppression(
    connection: &Connection,
    store: &Store,
    cluster: Option<i64>,
    session: Option<&str>,
) -> Result<usize> {
    store.database.require_writable("memory_reset")?;
    let _alone = store.learning()?;
    learning::reset(connection, &store.database, cluster, session)
}
