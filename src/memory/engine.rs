//! What lives as long as the DuckDB instance: the way to connect to it, and the index of every store that was used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use duckdb::Connection;

use super::sync::StoreIndex;
use super::text::Template;
use crate::error::{Error, Result};
use crate::rank::codes::Bits;
use crate::store::catalog::{self, Database};
use crate::store::instance::Instance;
use crate::store::schema::{self, StoreConfig};

pub struct Engine {
    instance: Instance,
    /// By the number DuckDB gives an attached database, since the file behind a name may change.
    shared: Mutex<HashMap<i64, Arc<Shared>>>,
}

/// What all calls on one attached store share.
pub struct Shared {
    store_id: String,
    /// Locked while the store is synchronised, so that no turn is encoded twice.
    pub index: Mutex<StoreIndex>,
    /// Locked while what was learned is changed, so that two retrievals at once do not conflict.
    pub learning: Mutex<Learning>,
}

/// What last kept a retrieval from being learned from.
#[derive(Default)]
pub struct Learning {
    pub error: Option<String>,
}

/// A store that has been found and read.
pub struct Store {
    pub database: Database,
    pub config: StoreConfig,
    pub template: Template,
    pub bits: Bits,
    pub shared: Arc<Shared>,
}

impl Store {
    pub fn index(&self) -> Result<MutexGuard<'_, StoreIndex>> {
        self.shared.index.lock().map_err(|_| Error::Internal("the lock of a store's index is poisoned".into()))
    }

    pub fn learning(&self) -> Result<MutexGuard<'_, Learning>> {
        self.shared.learning.lock().map_err(|_| Error::Internal("the lock of a store's learning is poisoned".into()))
    }
}

impl Engine {
    pub fn new(instance: Instance) -> Self {
        Self { instance, shared: Mutex::default() }
    }

    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    pub fn connect(&self) -> Result<Connection> {
        self.instance.connect()
    }

    /// Opens the store in `database`; an error when there is none.
    pub fn open(&self, connection: &Connection, database: &Database) -> Result<Store> {
        let config = schema::read(connection, database)?;
        let broken = |problem: String| Error::Data { store: database.name.clone(), table: "encoders", problem };
        let bits = i64::try_from(config.encoder.code_bits).ok().and_then(Bits::new);
        let bits =
            bits.ok_or_else(|| broken(format!("code_bits {}; 4 or 8 are expected", config.encoder.code_bits)))?;
        let template = Template::parse(&config.template)?;
        let shared = self.shared(connection, database, &config.store_id)?;
        Ok(Store { database: database.clone(), config, template, bits, shared })
    }

    /// What calls on this store share; new when the database was not asked before, or holds another store now.
    fn shared(&self, connection: &Connection, database: &Database, store_id: &str) -> Result<Arc<Shared>> {
        let lock = || self.shared.lock().map_err(|_| Error::Internal("the lock of the stores is poisoned".into()));
        if let Some(shared) = lock()?.get(&database.oid).filter(|shared| shared.store_id == store_id) {
            return Ok(shared.clone());
        }
        // Detached databases are let go of when another store is opened.
        let attached: Vec<i64> = catalog::databases(connection)?.iter().map(|database| database.oid).collect();
        let mut stores = lock()?;
        stores.retain(|oid, shared| attached.contains(oid) && (*oid != database.oid || shared.store_id == store_id));
        let new = || {
            let (index, learning) = (Mutex::default(), Mutex::default());
            Arc::new(Shared { store_id: store_id.to_owned(), index, learning })
        };
        Ok(stores.entry(database.oid).or_insert_with(new).clone())
    }

    /// The store that `name` or, without one, the caller's current database is.
    pub fn store(&self, connection: &Connection, name: Option<&str>, search_path: &str) -> Result<Store> {
        self.open(connection, &database(connection, name, search_path)?)
    }
}

/// The database that `name` or, without one, the caller's search path names.
pub fn database(connection: &Connection, name: Option<&str>, search_path: &str) -> Result<Database> {
    match name {
        Some(name) => catalog::database(connection, name),
        None => catalog::current(connection, search_path),
    }
}

/// Microseconds since 1970, UTC.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX))
}
