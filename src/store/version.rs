//! Whether anything was committed to a database, found out from its files without reading a table.
//!
//! Every commit that changes a database file's contents appends to its write-ahead log, and the last bytes are appended before
//! the commit is visible to a transaction that starts later (`DuckTransactionManager::CommitTransaction` flushes the log under
//! the lock that `StartTransaction` takes). A checkpoint, which empties the log, raises a counter in the database's header. So if
//! header and log are as they were before a transaction began, whatever that transaction read is still what is committed. The
//! reverse does not hold: another table may have changed.
//!
//! A database in memory, one that is not DuckDB's own format, one that is not a local file, and one that keeps no log have no
//! version; then their tables have to be read.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use duckdb::{Connection, params};

use super::catalog::Database;
use crate::error::Result;

/// The main header and the two database headers, of 4 KiB each (DuckDB's `Storage::FILE_HEADER_SIZE`).
const HEADERS: u64 = 3 * 4096;

/// What follows the name of the database in the names of its logs. The second is there while a checkpoint is made.
const LOGS: [&str; 2] = [".wal", ".wal.checkpoint"];

/// The state of a database's files: the same only if nothing was committed in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    headers: Vec<u8>,
    logs: [Option<u64>; 2],
}

impl Version {
    /// The version of what a transaction that begins after this call reads at least. `None` if the database has none.
    pub fn read(connection: &Connection, database: &Database) -> Result<Option<Self>> {
        let Some(path) = &database.file else { return Ok(None) };
        let Ok(version) = Self::of_file(path) else { return Ok(None) };
        let logged = version.logs.iter().any(Option::is_some);
        if logged || database.read_only || nothing_unlogged(connection, database)? {
            Ok(Some(version))
        } else {
            Ok(None)
        }
    }

    fn of_file(path: &Path) -> io::Result<Self> {
        let mut headers = Vec::new();
        File::open(path)?.take(HEADERS).read_to_end(&mut headers)?;
        let [log, checkpoint_log] = LOGS.map(|suffix| length(path, suffix));
        Ok(Self { headers, logs: [log?, checkpoint_log?] })
    }
}

fn length(path: &Path, suffix: &str) -> io::Result<Option<u64>> {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    match fs::metadata(PathBuf::from(name)) {
        Ok(data) => Ok(Some(data.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether nothing was committed since the last checkpoint. Without a log file, a database attached with
/// `RECOVERY_MODE no_wal_writes` cannot be told from one that was just checkpointed but by the size DuckDB gives its changes.
fn nothing_unlogged(connection: &Connection, database: &Database) -> Result<bool> {
    let sql = "SELECT wal_size = '0 bytes' FROM pragma_database_size() WHERE database_name = ?";
    let mut statement = connection.prepare(sql)?;
    let mut unchanged = statement.query_map(params![database.name], |row| row.get::<_, Option<bool>>(0))?;
    Ok(unchanged.next().transpose()?.flatten() == Some(true))
}
