//! Makes a store, brings an older one up to date, and reads what a store says of itself.

use duckdb::{Connection, params};

use super::catalog::Database;
use super::{to_i64, transaction};
use crate::error::{Error, Result};

/// What brings a store from version i to version i + 1; version 0 is a database without a store.
const MIGRATIONS: [&str; 1] = [include_str!("../../sql/schema_1.sql")];

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

/// The schema version of a database, 0 if it holds no store.
fn version(connection: &Connection, database: &Database) -> Result<i64> {
    let exists: bool = connection.query_row(
        "SELECT count(*) > 0 FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'lethe' AND table_name = 'store'",
        params![database.name],
        |row| row.get(0),
    )?;
    if !exists {
        return Ok(0);
    }
    match value(connection, database, "schema_version")?.map(|text| text.parse::<i64>()) {
        Some(Ok(version)) if version > 0 => Ok(version),
        other => Err(Error::Data {
            store: database.name.clone(),
            table: "store",
            problem: format!("schema_version {other:?}; a whole number is expected"),
        }),
    }
}

/// What the store says of itself. An error when there is none, or one of another version.
pub fn read(connection: &Connection, database: &Database) -> Result<StoreConfig> {
    let found = version(connection, database)?;
    if found == 0 {
        return Err(Error::NotAStore { store: database.name.clone() });
    }
    check_version(database, found)?;
    let need = |key: &'static str| {
        value(connection, database, key)?.ok_or_else(|| Error::Data {
            store: database.name.clone(),
            table: "store",
            problem: format!("no value for '{key}'"),
        })
    };
    let encoder_id = need("encoder_id")?;
    let sql = format!(
        "SELECT encoder_id, name, dim, pooling, context, code_bits FROM {} WHERE encoder_id = ?",
        database.table("encoders")
    );
    let mut statement = connection.prepare(&sql)?;
    let mut encoders = statement.query_map(params![encoder_id], |row| {
        Ok(StoredEncoder {
            id: row.get(0)?,
            name: row.get(1)?,
            dim: row.get::<_, u32>(2)? as usize,
            pooling: row.get(3)?,
            context: row.get::<_, u32>(4)? as usize,
            code_bits: row.get::<_, u32>(5)? as usize,
        })
    })?;
    let encoder = encoders.next().transpose()?.ok_or_else(|| Error::Data {
        store: database.name.clone(),
        table: "encoders",
        problem: format!("no row for encoder_id '{encoder_id}'"),
    })?;
    Ok(StoreConfig { store_id: need("store_id")?, encoder, learning: need("learning")?, template: need("template")? })
}

/// Whether the database holds a store, of whatever version.
pub fn is_store(connection: &Connection, database: &Database) -> Result<bool> {
    Ok(version(connection, database)? > 0)
}

fn check_version(database: &Database, found: i64) -> Result<()> {
    let hint = match found.cmp(&VERSION) {
        std::cmp::Ordering::Equal => return Ok(()),
        std::cmp::Ordering::Less => "CALL memory_create(store := …) brings it up to date",
        std::cmp::Ordering::Greater => "load a newer version of the extension",
    };
    Err(Error::SchemaVersion { store: database.name.clone(), found, supported: VERSION, hint })
}

/// Makes the store, or brings it to the current schema version. What there is stays.
///
/// `initial` describes the store if it is made new. Everything happens in one transaction. Returns the version found.
pub fn create(connection: &Connection, database: &Database, initial: Option<&StoreConfig>, now: i64) -> Result<i64> {
    database.require_writable("memory_create")?;
    let found = version(connection, database)?;
    if found > VERSION {
        check_version(database, found)?;
    }
    if found == VERSION {
        return Ok(found);
    }
    if found == 0 && initial.is_none() {
        return Err(Error::NotAStore { store: database.name.clone() });
    }
    transaction(connection, || {
        for migration in &MIGRATIONS[usize::try_from(found).unwrap_or_default()..] {
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

/// Changes what an existing store says of itself, in one transaction. States of another encoder are dropped: they cannot be
/// compared with, and are made anew.
pub fn update(connection: &Connection, database: &Database, config: &StoreConfig) -> Result<()> {
    database.require_writable("memory_create")?;
    transaction(connection, || {
        put(connection, database, "learning", &config.learning)?;
        put(connection, database, "template", &config.template)?;
        put_encoder(connection, database, &config.encoder)?;
        let sql = format!("DELETE FROM {} WHERE encoder_id <> ?", database.table("states"));
        connection.execute(&sql, params![config.encoder.id])?;
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

/// One entry of the table `store`. An error when the table holds it more than once.
pub fn value(connection: &Connection, database: &Database, key: &str) -> Result<Option<String>> {
    let mut statement = connection.prepare(&format!("SELECT value FROM {} WHERE key = ?", database.table("store")))?;
    let values: Vec<String> =
        statement.query_map(params![key], |row| row.get(0))?.collect::<std::result::Result<_, _>>()?;
    if values.len() > 1 {
        let problem = format!("'{key}' {} times", values.len());
        return Err(Error::Data { store: database.name.clone(), table: "store", problem });
    }
    Ok(values.into_iter().next())
}
