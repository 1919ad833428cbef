//! What lives as long as the DuckDB instance: the way to connect to it, and the index of every store that was used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use duckdb::Connection;
use uuid::Uuid;

use super::experience::Experience;
use super::knobs::AdapterChoice;
use super::sync::StoreIndex;
use super::text::Template;
use crate::error::{Error, Result};
use crate::model::encoder::Encoder;
use crate::rank::adapter::Adapter;
use crate::rank::codes::Bits;
use crate::store::adapters::{self, StoredAdapter};
use crate::store::catalog::{self, Database};
use crate::store::instance::Instance;
use crate::store::learning::{self, ClusterId, Cues, Suppression};
use crate::store::retrievals::{self, Fingerprint};
use crate::store::schema::{self, StoreConfig};
use crate::store::transaction;
use crate::store::version::Version;

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
    current: Mutex<Current>,
}

/// What last kept a retrieval from being learned from.
#[derive(Default)]
pub struct Learning {
    pub error: Option<String>,
}

/// The same at two moments only if nothing was committed to the store's database in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

/// The epoch, and what was read from the tables in it.
struct Current {
    epoch: Epoch,
    version: Option<Version>,
    config: Option<Arc<StoreConfig>>,
    cues: Option<Arc<Cues>>,
    experience: Option<Remembered>,
    /// The adapter the store trained, if it has one.
    adapter: Option<Option<Arc<StoredAdapter>>>,
    suppression: HashMap<ClusterId, Arc<BySuppressed>>,
}

/// The suppression of each suppressed turn in one cluster.
pub type BySuppressed = HashMap<Uuid, Suppression>;

impl Current {
    fn new(epoch: Epoch, version: Option<Version>, experience: Option<Remembered>) -> Self {
        Self { epoch, version, config: None, cues: None, experience, adapter: None, suppression: HashMap::new() }
    }
}

/// The experience of a store. Reading it takes a tenth of a second for 10,000 questions, so it outlasts the epoch where the table of
/// retrievals is found as it was.
#[derive(Clone)]
struct Remembered {
    experience: Arc<Experience>,
    /// The epoch in which it was last found so.
    epoch: Epoch,
    retrievals: Fingerprint,
    encoder: String,
}

impl Shared {
    fn new(store_id: &str) -> Self {
        Self {
            store_id: store_id.to_owned(),
            index: Mutex::default(),
            learning: Mutex::default(),
            current: Mutex::new(Current::new(Epoch(0), None, None)),
        }
    }

    fn current(&self) -> Result<MutexGuard<'_, Current>> {
        self.current.lock().map_err(|_| Error::Internal("the lock of a store's epoch is poisoned".into()))
    }

    /// The epoch in which the database has that version; a new one for each call when it has none.
    fn epoch(&self, version: Option<Version>) -> Result<Epoch> {
        let mut current = self.current()?;
        if version.is_none() || version != current.version {
            let (next, experience) = (Epoch(current.epoch.0 + 1), current.experience.take());
            *current = Current::new(next, version, experience);
        }
        Ok(current.epoch)
    }
}

/// A store that has been found and read.
pub struct Store {
    pub database: Database,
    pub config: Arc<StoreConfig>,
    pub template: Template,
    pub bits: Bits,
    pub shared: Arc<Shared>,
    epoch: Epoch,
}

impl Store {
    pub fn index(&self) -> Result<MutexGuard<'_, StoreIndex>> {
        self.shared.index.lock().map_err(|_| Error::Internal("the lock of a store's index is poisoned".into()))
    }

    pub fn learning(&self) -> Result<MutexGuard<'_, Learning>> {
        self.shared.learning.lock().map_err(|_| Error::Internal("the lock of a store's learning is poisoned".into()))
    }

    /// The epoch that begins now, or goes on.
    pub fn epoch(&self, connection: &Connection) -> Result<Epoch> {
        self.shared.epoch(Version::read(connection, &self.database)?)
    }

    /// The cue clusters in force.
    pub fn cues(&self, connection: &Connection) -> Result<Arc<Cues>> {
        let known = |current: &Current| current.cues.clone().filter(|_| current.epoch == self.epoch);
        if let Some(cues) = known(&*self.shared.current()?) {
            return Ok(cues);
        }
        let cues = Arc::new(learning::cues(connection, &self.database)?);
        let mut current = self.shared.current()?;
        if current.epoch == self.epoch {
            current.cues = Some(cues.clone());
        }
        Ok(cues)
    }

    /// What is remembered of the questions that were asked.
    pub fn experience(&self, connection: &Connection) -> Result<Arc<Experience>> {
        let known = |current: &Current| current.experience.clone().filter(|known| known.epoch == self.epoch);
        if let Some(known) = known(&*self.shared.current()?) {
            return Ok(known.experience);
        }
        // Not while another call learns, as with suppression.
        let _alone = self.learning()?;
        let before = self.shared.current()?.experience.take();
        let retrievals = retrievals::fingerprint(connection, &self.database, None)?;
        let encoder = &self.config.encoder.id;
        let same = before.filter(|before| before.retrievals == retrievals && before.encoder == *encoder);
        let mut experience = match same {
            Some(before) => before.experience,
            None => Arc::new(Experience::of(retrievals::read(connection, &self.database)?)),
        };
        Arc::make_mut(&mut experience).judge_anew(learning::feedback(connection, &self.database)?);
        let mut current = self.shared.current()?;
        if current.epoch == self.epoch {
            let (experience, encoder) = (experience.clone(), encoder.clone());
            current.experience = Some(Remembered { experience, epoch: self.epoch, retrievals, encoder });
        }
        Ok(experience)
    }

    /// Takes note of what was stored [`Store::aside`]: verdicts, and retrievals with the fingerprint of their rows.
    pub fn experienced(&self, retrievals: Fingerprint, more: impl FnOnce(&mut Experience)) -> Result<()> {
        if let Some(known) = &mut self.shared.current()?.experience {
            more(Arc::make_mut(&mut known.experience));
            known.retrievals = known.retrievals.and(retrievals);
        }
        Ok(())
    }

    /// The query adapter the store trained.
    pub fn trained(&self, connection: &Connection) -> Result<Option<Arc<StoredAdapter>>> {
        let known = |current: &Current| current.adapter.clone().filter(|_| current.epoch == self.epoch);
        if let Some(adapter) = known(&*self.shared.current()?) {
            return Ok(adapter);
        }
        let encoder = &self.config.encoder;
        let adapter = adapters::read(connection, &self.database, &encoder.id, encoder.dim)?.map(Arc::new);
        let mut current = self.shared.current()?;
        if current.epoch == self.epoch {
            current.adapter = Some(adapter.clone());
        }
        Ok(adapter)
    }

    /// The query adapter in force.
    pub fn adapter(
        &self,
        connection: &Connection,
        encoder: &Encoder,
        choice: AdapterChoice,
    ) -> Result<Option<Arc<Adapter>>> {
        let trained = match choice {
            AdapterChoice::None => return Ok(None),
            AdapterChoice::Encoder => None,
            AdapterChoice::Auto => self.trained(connection)?,
        };
        Ok(trained.map(|trained| trained.adapter.clone()).or_else(|| encoder.adapter().cloned()))
    }

    /// Runs `work` in a transaction of its own that does not change the turns, and lets the epoch go on after it if nothing else was
    /// committed meanwhile. What it changes of that which the epoch holds, the caller says.
    ///
    /// DuckDB numbers the starts and the commits of a database's transactions one by one. If the next one to start after this
    /// one's commit has the number after that commit, none was committed in between.
    pub fn aside<T>(&self, connection: &Connection, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let version = || Version::read(connection, &self.database);
        if version()?.is_none() {
            return transaction(connection, work);
        }
        connection.execute_batch(&format!("USE {}", self.database.quoted()))?;
        // The transaction that a statement on this connection's default database runs in. Prepared here, because that is a
        // transaction of its own.
        let mut numbering = connection.prepare("SELECT txid_current()")?;
        let mut number = || numbering.query_row([], |row| row.get::<_, u64>(0));
        let (started, before, done) = transaction(connection, || {
            // In this order: a commit that is not in the version has not begun when the transaction is numbered.
            let started = number()?;
            let before = version()?;
            Ok((started, before, work()?))
        })?;
        let after = version()?;
        if after.is_some() && number()? == started + 2 {
            let mut current = self.shared.current()?;
            if current.version == before {
                current.version = after;
            }
        }
        Ok(done)
    }

    /// What is suppressed in a cluster.
    pub fn suppression(&self, connection: &Connection, cluster: ClusterId) -> Result<Arc<BySuppressed>> {
        let known =
            |current: &Current| current.suppression.get(&cluster).cloned().filter(|_| current.epoch == self.epoch);
        if let Some(suppression) = known(&*self.shared.current()?) {
            return Ok(suppression);
        }
        // Not while another call learns, which would tell of its entries before these are in place.
        let _alone = self.learning()?;
        let entries = learning::suppression_in(connection, &self.database, cluster)?;
        let suppression = Arc::new(entries.into_iter().map(|entry| (entry.turn, entry)).collect::<BySuppressed>());
        let mut current = self.shared.current()?;
        if current.epoch == self.epoch {
            current.suppression.insert(cluster, suppression.clone());
        }
        Ok(suppression)
    }

    /// Takes note of entries that were stored [`Store::aside`].
    pub fn suppression_put(&self, entries: &[Suppression]) -> Result<()> {
        let mut current = self.shared.current()?;
        for entry in entries {
            if let Some(suppression) = current.suppression.get_mut(&entry.cluster) {
                Arc::make_mut(suppression).insert(entry.turn, *entry);
            }
        }
        Ok(())
    }

    /// Has everything that was learned read again.
    pub fn learned_anew(&self) -> Result<()> {
        let mut current = self.shared.current()?;
        (current.cues, current.experience, current.adapter, current.suppression) = (None, None, None, HashMap::new());
        Ok(())
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
        let version = Version::read(connection, database)?;
        let known = self.stores()?.get(&database.oid).cloned();
        if let Some(shared) = known {
            let epoch = shared.epoch(version.clone())?;
            let config = shared.current()?.config.clone();
            if let Some(config) = config {
                return Self::store_of(database, config, shared, epoch);
            }
        }
        let config = Arc::new(schema::read(connection, database)?);
        let shared = self.shared(connection, database, &config.store_id)?;
        let epoch = shared.epoch(version)?;
        let mut current = shared.current()?;
        if current.epoch == epoch {
            current.config = Some(config.clone());
        }
        drop(current);
        Self::store_of(database, config, shared, epoch)
    }

    fn store_of(database: &Database, config: Arc<StoreConfig>, shared: Arc<Shared>, epoch: Epoch) -> Result<Store> {
        let broken = |problem: String| Error::Data { store: database.name.clone(), table: "encoders", problem };
        let bits = i64::try_from(config.encoder.code_bits).ok().and_then(Bits::new);
        let bits =
            bits.ok_or_else(|| broken(format!("code_bits {}; 4 or 8 are expected", config.encoder.code_bits)))?;
        let template = Template::parse(&config.template)?;
        Ok(Store { database: database.clone(), config, template, bits, shared, epoch })
    }

    fn stores(&self) -> Result<MutexGuard<'_, HashMap<i64, Arc<Shared>>>> {
        self.shared.lock().map_err(|_| Error::Internal("the lock of the stores is poisoned".into()))
    }

    /// What calls on this store share; new when the database was not asked before, or holds another store now.
    fn shared(&self, connection: &Connection, database: &Database, store_id: &str) -> Result<Arc<Shared>> {
        if let Some(shared) = self.stores()?.get(&database.oid).filter(|shared| shared.store_id == store_id) {
            return Ok(shared.clone());
        }
        // Detached databases are let go of when another store is opened.
        let attached: Vec<i64> = catalog::databases(connection)?.iter().map(|database| database.oid).collect();
        let mut stores = self.stores()?;
        stores.retain(|oid, shared| attached.contains(oid) && (*oid != database.oid || shared.store_id == store_id));
        Ok(stores.entry(database.oid).or_insert_with(|| Arc::new(Shared::new(store_id))).clone())
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
