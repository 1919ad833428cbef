//! Forgetting: turns go with everything derived from them.

use std::path::Path;

use duckdb::Connection;
use uuid::Uuid;

use super::engine::{Engine, Store};
use super::sync::drop_turns;
use crate::error::Result;
use crate::store::turns::{self, Filter};
use crate::store::{learning, states, transaction};

/// Which turns to forget: those of `turns`, if given, that also pass the filter.
pub struct Forget {
    pub turns: Option<Vec<Uuid>>,
    pub filter: Filter,
}

/// Removes turns with their states, suppression and feedback, in one transaction. Returns the rows removed by table.
///
/// The states of turns that may have been encoded behind a forgotten one go too, so that no forgotten word lives on in them;
/// they are made anew by the next retrieval or synchronisation. What is saved of the index goes with them.
pub fn forget(
    engine: &Engine,
    connection: &Connection,
    store: &Store,
    cache: Option<&Path>,
    request: &Forget,
) -> Result<Vec<(&'static str, usize)>> {
    let database = &store.database;
    database.require_writable("memory_forget")?;
    if let Some(predicate) = &request.filter.predicate {
        turns::check_predicate(engine.instance(), connection, database, predicate)?;
    }
    // A synchronisation that is under way has read the turns and will write what it made of them: it goes first, so that its
    // states are among those deleted here. And so that neither conflicts with the other.
    let mut index = store.index()?;
    let _alone = store.learning()?;
    let (ids, removed) = transaction(connection, || {
        let matching = turns::matching(connection, database, &request.filter, None)?;
        let ids: Vec<Uuid> = match &request.turns {
            None => matching,
            Some(turns) => matching.into_iter().filter(|id| turns.contains(id)).collect(),
        };
        if ids.is_empty() {
            return Ok((ids, ["turns", "states", "suppression", "feedback"].map(|table| (table, 0)).to_vec()));
        }
        let behind = turns::encoded_behind(connection, database, &ids, store.config.encoder.context)?;
        let mut removed = vec![("turns", turns::delete(connection, database, &ids)?)];
        removed.extend(learning::delete_derived(connection, database, &ids)?);
        states::delete(connection, database, &behind)?;
        Ok((ids, removed))
    })?;
    if !ids.is_empty() {
        store.learned_anew()?;
        drop_turns(store, &mut index, cache, &ids)?;
    }
    Ok(removed)
}
