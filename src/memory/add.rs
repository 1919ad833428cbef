//! Adding turns.

use duckdb::Connection;
use uuid::Uuid;

use super::engine::Store;
use super::sync::sync;
use crate::error::Result;
use crate::model::encoder::Encoder;
use crate::store::transaction;
use crate::store::turns::{self, NewTurn};

/// Stores turns in one transaction, then encodes them. Returns their ids, in order.
///
/// The store's encoder is checked first, so that nothing is stored that could not be found again.
pub fn add(
    connection: &Connection,
    store: &Store,
    encoder: &Encoder,
    turns: &[NewTurn],
    progress: bool,
) -> Result<Vec<Uuid>> {
    store.database.require_writable("memory_add")?;
    super::sync::check_encoder(store, encoder)?;
    transaction(connection, || turns::insert(connection, &store.database, turns))?;
    sync(connection, store, encoder, progress)?;
    Ok(turns.iter().map(|new| new.turn.id).collect())
}
