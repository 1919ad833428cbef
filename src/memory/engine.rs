//! What lives as long as the DuckDB instance: the way to connect to it, and the index of every store that was used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use duckdb::Connection;

use super::sync::StoreIndex;
use super::text::Template;
use crate::error::{Error, Result};
use crate::rank::codes::Bits;
use crate::store::catalog::{self, Database};
use crate::store::instance::Instance;
use crate::store::schema::{self, StoreConfig};

/// A store by its name and its store_id: the file behind a name may change, and a file be attached under two names.
type StoreKey = (String, String);

pub struct Engine {
    instance: Instance,
    indexes: Mutex<HashMap<StoreKey, Arc<Mutex<StoreIndex>>>>,
}

/// A store that has been found and read.
pub struct Store {
    pub database: Database,
    pub config: StoreConfig,
    pub template: Template,
    pub bits: Bits,
    /// Locked while the store is synchronised, so that no turn is encoded twice.
    pub index: Arc<Mutex<StoreIndex>>,
}

impl Engine {
    pub fn new(instance: Instance) -> Self {
        Self { instance, indexes: Mutex::default() }
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
        let key = (database.name.clone(), config.store_id.clone());
        let mut indexes =
            self.indexes.lock().map_err(|_| Error::Internal("the lock of the indexes is poisoned".into()))?;
        let index = indexes.entry(key).or_default().clone();
        Ok(Store { database: database.clone(), config, template, bits, index })
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
