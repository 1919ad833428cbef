//! Makes a store, brings an older one up to date, and reads what a store says of itself.

use std::collections::HashMap;

use duckdb::{Connection, params};

use super::catalog::Database;
use super::{to_i64, transaction};
use crate::error::{Error, Result};

/// What brings a store from version i to version i + 1; version 0 is a database without a store.
const MIGRATIONS: [&str; 2] = [include_str!("../../sql/schema_1.sql"), include_str!("../../sql/schema_2.sql")];

/// The schema version this extension reads and writes.
pub const VERSION: i64 = MIGRATIONS.len() as i64;

/// The encoder a store was encoded by, and how it was used.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEncoder {
    pub id: String,
    pub name: String,
    pub dim: usize,
    pub pooling: String,
    /// How many wordpieces of earlier turns a turn is encoded behind.
    pub context: usize,
    pub code_bits: usize,
}

/// What a store says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    pub store_id: String,
    pub encoder: StoredEncoder,
    pub learning: String,
    pub template: String,
}

/// What retrieval cannot do without. Without the others it can answer, but not learn.
const NEEDED: [&str; 8] = ["encoders", "turns", "states", "cues", "suppression", "adapters", "retrievals", "feedback"];
const TABLES: [&str; 9] =
    ["store", "encoders", "turns", "states", "retrievals", "cues", "suppression", "feedback", "adapters"];

/// The names of the tables in a database's schema `lethe`.
fn tables(connection: &Connection, database: &Database) -> Result<Vec<String>> {
    let mut statement = connection
        .prepare("SELECT table_name FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'lethe'")?;
    let names = statement.query_map(params![database.name], |row| row.get(0))?;
    Ok(names.collect::<std::result::Result<_, _>>()?)
}

/// The table `store` of a database with those tables; empty if it holds no store.
fn entries(connection: &Connection, database: &Database, tables: &[String]) -> Result<HashMap<String, String>> {
    if !tables.iter().any(|table| table == "store") {
        return Ok(HashMap::new());
    }
    let mut statement = connection.prepare(&format!("SELECT key, value FROM {}", database.table("store")))?;
    let mut entries = HashMap::new();
    for entry in statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))? {
        let (key, value) = entry?;
        if let Some(other) = entries.insert(key, value) {
            return Err(broken(database, format!("a key twice, once with the value '{other}'")));
        }
    }
    if entries.is_empty() { Err(broken(database, "no row".into())) } else { Ok(entries) }
}

fn broken(database: &Database, problem: String) -> Error {
    Error::Data { store: database.name.clone(), table: "store", problem }
}

/// The schema version that the entries name, 0 if there are none.
fn version(database: &Database, entries: &HashMap<String, String>) -> Result<i64> {
    match entries.get("schema_version").map(|text| text.parse::<i64>()) {
        None if entries.is_empty() => Ok(0),
        Some(Ok(version)) if version > 0 => Ok(version),
        other => Err(broken(database, format!("schema_version {other:?}; a whole number is expected"))),
    }
}

/// What the store says of itself. An error when there is none, or one of another version.
pub fn read(connection: &Connection, database: &Database) -> Result<StoreConfig> {
    let tables = tables(connection, database)?;
    let mut entries = entries(connection, database, &tables)?;
    let found = version(database, &entries)?;
    if found == 0 {
        return Err(Error::NotAStore { store: database.name.clone() });
    }
    check_version(database, found)?;
    if let Some(table) = NEEDED.into_iter().find(|needed| !tables.iter().any(|table| table == needed)) {
        return Err(Error::MissingTable { store: database.name.clone(), table: table.to_owned() });
    }
    let mut need = |key: &str| entries.remove(key).ok_or_else(|| broken(database, format!("no value for '{key}'")));
    Ok(StoreConfig {
        store_id: need("store_id")?,
        encoder: read_encoder(connection, database, &need("encoder_id")?)?,
        learning: need("learning")?,
        template: need("template")?,
    })
}

fn read_encoder(connection: &Connection, database: &Database, id: &str) -> Result<StoredEncoder> {
    let sql = format!(
        "SELECT encoder_id, name, dim, pooling, context, code_bits FROM {} WHERE encoder_id = ?",
        database.table("encoders")
    );
    let mut statement = connection.prepare(&sql)?;
    let mut encoders = statement.query_map(params![id], |row| {
        Ok(StoredEncoder {
            id: row.get(0)?,
            name: row.get(1)?,
            dim: row.get::<_, u32>(2)? as usize,
            pooling: row.get(3)?,
            context: row.get::<_, u32>(4)? as usize,
            code_bits: row.get::<_, u32>(5)? as usize,
        })
    })?;
    encoders.next().transpose()?.ok_or_else(|| Error::Data {
        store: database.name.clone(),
        table: "encoders",
        problem: format!("no row for encoder_id '{id}'"),
    })
}

/// Whether the database holds a store, of whatever version.
pub fn is_store(connection: &Connection, database: &Database) -> Result<bool> {
    Ok(tables(connection, database)?.iter().any(|table| table == "store"))
}

fn check_version(database: &Database, found: i64) -> Result<()> {
    let hint = match found.cmp(&VERSION) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => "CALL memory_create(store := …) brings it up to date",
        std::cmp::Ordering::Greater => "load a newer version of the extension",
    };
    Err(Error::SchemaVersion { store: database.name.clone(), found, supported: VERSION, hint })
}

/// Makes the store, or brings it to the current schema version, with every table. What there is stays.
///
/// `initial` describes the store if it is made new. Everything happens in one transaction. Returns the version found.
pub fn create(connection: &Connection, database: &Database, initial: Option<&StoreConfig>, now: i64) -> Result<i64> {
    database.require_writable("memory_create")?;
    let tables = tables(connection, database)?;
    let found = version(database, &entries(connection, database, &tables)?)?;
    if found > VERSION {
        check_version(database, found)?;
    }
    if let (0, Some(table)) = (found, tables.iter().find(|table| TABLES.contains(&table.as_str()))) {
        return Err(Error::ForeignTable { store: database.name.clone(), table: table.clone() });
    }
    let complete = TABLES.iter().all(|name| tables.iter().any(|table| table == name));
    if found == VERSION && complete {
        return Ok(found);
    }
    if found == 0 && initial.is_none() {
        return Err(Error::NotAStore { store: database.name.clone() });
    }
    transaction(connection, || {
        // A table that was dropped is put back by the migration that made it; those that are there are left alone.
        let from = if complete { usize::try_from(found).unwrap_or_default() } else { 0 };
        for migration in &MIGRATIONS[from..] {
            connection.execute_batch(&migration.replace("{store}", &database.quoted()))?;
        }
        if let Some(initial) = initial {
            put(connection, database, "store_id", &initial.store_id)?;
            put(connection, database, "learning", &initial.learning)?;
            put(connection, database, "template", &initial.template)?;
            let created: String =
                connection.query_row("SELECT make_timestamp(?)::VARCHAR", params![now], |row| row.get(0))?;
            put(connection, database, "created_at", &created)?;
            put_encoder(connection, database, &initial.encoder)?;
        }
        put(connection, database, "schema_version", &VERSION.to_string())
    })?;
    Ok(found)
}

/// Changes what an existing store says of itself, in one transaction.
///
/// With another encoder, the states of the old one go and are made anew, and what was learned of the questions as it saw them goes:
/// vectors of two encoders cannot be compared, however wide they are. The questions stay, without their vectors, and the feedback.
pub fn update(connection: &Connection, database: &Database, before: &StoreConfig, config: &StoreConfig) -> Result<()> {
    database.require_writable("memory_create")?;
    transaction(connection, || {
        put(connection, database, "learning", &config.learning)?;
        put(connection, database, "template", &config.template)?;
        put_encoder(connection, database, &config.encoder)?;
        if before.encoder.id != config.encoder.id {
            for table in ["states", "cues", "suppression"] {
                connection.execute(&format!("DELETE FROM {}", database.table(table)), [])?;
            }
            let retrievals = database.table("retrievals");
            connection
                .execute(&format!("UPDATE {retrievals} SET embedding = []::FLOAT[], cluster_id = 0, pool = []"), [])?;
        }
        Ok(())
    })
}

fn put_encoder(connection: &Connection, database: &Database, encoder: &StoredEncoder) -> Result<()> {
    let table = database.table("encoders");
    connection.execute(&format!("DELETE FROM {table} WHERE encoder_id = ?"), params![encoder.id])?;
    connection.execute(
        &format!("INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)"),
        params![
            encoder.id,
            encoder.name,
            to_i64(encoder.dim),
            encoder.pooling,
            to_i64(encoder.context),
            to_i64(encoder.code_bits)
        ],
    )?;
    put(connection, database, "encoder_id", &encoder.id)
}

fn put(connection: &Connection, database: &Database, key: &str, value: &str) -> Result<()> {
    let table = database.table("store");
    connection.execute(&format!("DELETE FROM {table} WHERE key = ?"), params![key])?;
    connection.execute(&format!("INSERT INTO {table} VALUES (?, ?)"), params![key, value])?;
    Ok(())
}
