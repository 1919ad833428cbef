//! Where a question is asked: one or more stores, each as it is now, and which of its turns may be ranked.

use std::sync::Arc;

use duckdb::Connection;
use uuid::Uuid;

use super::engine::{Store, database};
use super::experience::Experience;
use super::knobs::AdapterChoice;
use super::request::{Asker, Request, StoreChoice};
use super::snapshot::{Side, Snapshot};
use super::sync::{Means, Synchronised, sync};
use crate::error::{Error, Result};
use crate::index::Slot;
use crate::index::segment::{Recalled, Segment};
use crate::model::encoder::{Encoder, Piece};
use crate::rank::adapter::Adapter;
use crate::store::catalog;
use crate::store::schema;
use crate::store::turns::{self, Turn};

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
    /// For each segment, for each of its memories, whether it may be ranked. `None`: all of them.
    allowed: Option<Vec<Vec<bool>>>,
}

/// A segment of one of the scope's stores, to be searched.
#[derive(Clone, Copy)]
pub struct Shelf<'a> {
    pub store: usize,
    number: u32,
    pub segment: &'a Segment,
    /// For each memory whether it may be ranked. `None`: all of them.
    pub allowed: Option<&'a [bool]>,
}

impl Shelf<'_> {
    /// The memory at a place of the segment, as a candidate.
    pub fn candidate(&self, place: u32) -> Option<Candidate> {
        let turn = self.segment.entry(place)?.turn;
        Some(Candidate { turn, store: self.store, slot: Slot { segment: self.number, place } })
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
        let means = Means { encoder, cache: asker.cache, threads: asker.models.threads, progress: request.progress };
        let mut places = Vec::new();
        for store in stores(asker, connection, &request.stores)? {
            if let Some(predicate) = &filter.predicate {
                turns::check_predicate(asker.engine.instance(), connection, &store.database, predicate)?;
            }
            let Synchronised { snapshot, expiring, .. } = sync(connection, &store, means)?;
            let allowed = if filter.is_empty() && !expiring {
                None
            } else {
                let mut allowed: Vec<Vec<bool>> =
                    snapshot.segments().iter().map(|segment| vec![false; segment.size()]).collect();
                for id in turns::matching(connection, &store.database, filter, Some(now))? {
                    if let Some(slot) = snapshot.slot(id) {
                        allowed[slot.segment as usize][slot.place as usize] = true;
                    }
                }
                Some(allowed)
            };
            places.push(Place { store, snapshot, allowed });
        }
        Ok(Self { places })
    }

    /// Every segment that holds something that may be ranked.
    pub fn shelves(&self) -> Vec<Shelf<'_>> {
        self.places.iter().enumerate().flat_map(|(store, place)| place.shelves(store)).collect()
    }

    /// The query adapter of each store.
    pub fn adapters(
        &self,
        connection: &Connection,
        encoder: &Encoder,
        choice: AdapterChoice,
    ) -> Result<Vec<Option<Arc<Adapter>>>> {
        let of = |place: &Place| place.store.adapter(connection, encoder, choice);
        self.places.iter().map(of).collect()
    }

    /// What each store remembers of the questions it was asked.
    pub fn experience(&self, connection: &Connection) -> Result<Vec<Arc<Experience>>> {
        self.places.iter().map(|place| place.store.experience(connection)).collect()
    }

    /// How many turns there are in all, whatever the filter.
    pub fn size(&self) -> usize {
        self.places.iter().map(|place| place.snapshot.size()).sum()
    }

    /// How many turns hold a wordpiece.
    pub fn containing(&self, piece: Piece) -> usize {
        self.places.iter().map(|place| place.snapshot.containing(piece)).sum()
    }

    /// The memory that a candidate is.
    pub fn recall(&self, candidate: Candidate) -> Result<Recalled> {
        self.place(candidate)?.snapshot.recall(candidate.slot)
    }

    /// A turn of the store at `place`, as a candidate, if it may be ranked.
    pub fn candidate(&self, place: usize, turn: Uuid) -> Option<Candidate> {
        let Place { snapshot, allowed, .. } = self.places.get(place)?;
        let slot = snapshot.slot(turn)?;
        let passes = |allowed: &Vec<Vec<bool>>| allowed[slot.segment as usize][slot.place as usize];
        allowed.as_ref().is_none_or(passes).then_some(Candidate { turn, store: place, slot })
    }

    /// Who was said before a candidate in its session, or after it.
    pub fn neighbour(&self, candidate: Candidate, side: Side) -> Option<Candidate> {
        let snapshot = &self.places.get(candidate.store)?.snapshot;
        let slot = snapshot.neighbour(candidate.slot, side)?;
        Some(Candidate { turn: snapshot.entry(slot)?.turn, store: candidate.store, slot })
    }

    pub fn place(&self, candidate: Candidate) -> Result<&Place> {
        let place = self.places.get(candidate.store);
        place.ok_or_else(|| Error::Internal(format!("no store behind {candidate:?}")))
    }

    /// The turn that a candidate is.
    pub fn turn(&self, candidate: Candidate) -> Result<Turn> {
        self.place(candidate)?.snapshot.turn(candidate.slot)
    }
}

impl Place {
    fn shelves(&self, store: usize) -> Vec<Shelf<'_>> {
        let shelf = |(number, segment)| {
            let allowed = self.allowed.as_ref().map(|allowed| allowed[number as usize].as_slice());
            Shelf { store, number, segment, allowed }
        };
        let segments = (0u32..).zip(self.snapshot.segments().iter().map(|segment| &**segment));
        segments.map(shelf).filter(|shelf| shelf.allowed.is_none_or(|allowed| allowed.contains(&true))).collect()
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
