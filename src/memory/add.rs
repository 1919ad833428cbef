//! Adding turns.

use duckdb::Connection;
use uuid::Uuid;

use super::engine::Store;
use super::sync::{Means, check_encoder, sync};
use crate::error::Result;
use crate::store::transaction;
use crate::store::turns::{self, NewTurn};

/// Stores turns in one transaction, then encodes them. Returns their ids, in order.
///
/// The store's encoder is checked first, so that nothing is stored that could not be found again.
pub fn add(connection: &Connection, store: &Store, means: Means, turns: &[NewTurn]) -> Result<Vec<Uuid>> {
    store.database.require_writable("memory_add")?;
    check_encoder(store, means.encoder)?;
    transaction(connection, || turns::insert(connection, &store.database, turns))?;
    sync(connection, store, means)?;
    Ok(turns.iter().map(|new| new.turn.id).collect())
}
