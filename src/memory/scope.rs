//! Where a question is asked: one or more stores, each as it is now, and which of its turns may be ranked.

use std::collections::HashSet;
use std::sync::Arc;

use duckdb::Connection;
use uuid::Uuid;

use super::engine::{Store, database};
use super::request::{Asker, Request, StoreChoice};
use super::snapshot::{Memory, Snapshot};
use super::sync::sync;
use crate::error::{Error, Result};
use crate::index::Slot;
use crate::model::encoder::{Encoder, Piece};
use crate::store::catalog;
use crate::store::schema;
use crate::store::turns;

/// A candidate: a turn of one of the scope's stores. Ordered by turn, so that equal scores give the same rows every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Candidate {
    pub turn: Uuid,
    /// Place of the store in the scope.
    pub store: usize,
    pub slot: Slot,
}

/// One store of a scope.
pub struct Place {
    pub store: Store,
    pub snapshot: Arc<Snapshot>,
    /// `None`: all of them.
    allowed: Option<HashSet<Slot>>,
}

impl Place {
    pub fn allows(&self, slot: Slot) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&slot))
    }
}

/// The stores a question is asked of, synchronised.
pub struct Scope {
    pub places: Vec<Place>,
}

impl Scope {
    /// Opens and synchronises the stores, and finds what passes the filter and has not ended at `now`.
    pub fn open(
        asker: &Asker,
        connection: &Connection,
        request: &Request,
        encoder: &Encoder,
        now: i64,
    ) -> Result<Self> {
        let filter = &request.filter;
        let mut places = Vec::new();
        for store in stores(asker, connection, &request.stores)? {
            if let Some(predicate) = &filter.predicate {
                turns::check_predicate(asker.engine.instance(), connection, &store.database, predicate)?;
            }
            let (snapshot, _) = sync(connection, &store, encoder, request.progress)?;
            let allowed = if filter.is_empty() && !snapshot.expiring {
                None
            } else {
                let ids = turns::matching(connection, &store.database, filter, Some(now))?;
                Some(ids.into_iter().filter_map(|id| snapshot.slot(id)).collect())
            };
            places.push(Place { store, snapshot, allowed });
        }
        Ok(Self { places })
    }

    /// How many turns there are in all, whatever the filter.
    pub fn turns(&self) -> usize {
        self.places.iter().map(|place| place.snapshot.len()).sum()
    }

    /// How many turns hold a wordpiece.
    pub fn containing(&self, piece: Piece) -> usize {
        self.places.iter().map(|place| place.snapshot.containing(piece)).sum()
    }

    pub fn memory(&self, candidate: Candidate) -> Result<&Arc<Memory>> {
        let place = self.places.get(candidate.store);
        place
            .and_then(|place| place.snapshot.memory(candidate.slot))
            .ok_or_else(|| Error::Internal(format!("no memory behind {candidate:?}")))
    }
}

/// The stores that are meant, each once.
fn stores(asker: &Asker, connection: &Connection, choice: &StoreChoice) -> Result<Vec<Store>> {
    let databases = match choice {
        StoreChoice::Current => vec![database(connection, None, asker.search_path)?],
        StoreChoice::Named(names) => {
            let found = names.iter().map(|name| catalog::database(connection, name)).collect::<Result<Vec<_>>>()?;
            let mut distinct = Vec::with_capacity(found.len());
            found.into_iter().for_each(|database| {
                if !distinct.contains(&database) {
                    distinct.push(database);
                }
            });
            distinct
        }
        StoreChoice::All => {
            let mut found = Vec::new();
            for database in catalog::databases(connection)? {
                if schema::is_store(connection, &database)? {
                    found.push(database);
                }
            }
            if found.is_empty() {
                return Err(Error::argument(
                    "stores",
                    "'*', but no attached database is a memory store",
                    "attached stores",
                ));
            }
            found
        }
    };
    databases.iter().map(|database| asker.engine.open(connection, database)).collect()
}
