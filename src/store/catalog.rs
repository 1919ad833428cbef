//! Which databases are attached, and how their names are written.

use std::path::PathBuf;

use duckdb::Connection;

use crate::error::{Error, Result};

/// An attached database, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Database {
    pub name: String,
    pub read_only: bool,
    /// DuckDB's number for it: another one each time a database is attached.
    pub oid: i64,
    /// The local file of a database in DuckDB's own format.
    pub file: Option<PathBuf>,
}

impl Database {
    /// The name as it stands in SQL.
    pub fn quoted(&self) -> String {
        quote(&self.name)
    }

    /// The full, quoted name of one of the store's tables.
    pub fn table(&self, table: &str) -> String {
        format!("{}.lethe.{table}", self.quoted())
    }

    pub fn require_writable(&self, action: &'static str) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly { store: self.name.clone(), action }) } else { Ok(()) }
    }
}

/// An SQL identifier.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// All attached databases that are not DuckDB's own, by name.
pub fn databases(connection: &Connection) -> Result<Vec<Database>> {
    let mut statement = connection.prepare(
        "SELECT database_name, readonly, database_oid, CASE WHEN type = 'duckdb' THEN path END \
         FROM duckdb_databases() WHERE NOT internal ORDER BY database_name",
    )?;
    let rows = statement.query_map([], |row| {
        let file = row.get::<_, Option<String>>(3)?.map(PathBuf::from);
        Ok(Database { name: row.get(0)?, read_only: row.get(1)?, oid: row.get(2)?, file })
    })?;
    Ok(rows.collect::<std::result::Result<_, _>>()?)
}

/// The attached database of that name. Names compare as DuckDB compares them, without regard to case.
pub fn database(connection: &Connection, name: &str) -> Result<Database> {
    let attached = databases(connection)?;
    match attached.iter().find(|database| database.name.eq_ignore_ascii_case(name)) {
        Some(database) => Ok(database.clone()),
        None => {
            let names: Vec<&str> = attached.iter().map(|database| database.name.as_str()).collect();
            Err(Error::UnknownStore { store: name.to_owned(), attached: names.join(", ") })
        }
    }
}

/// The current database of a caller with that `search_path`.
///
/// The path is empty when the caller never said USE; then its current database is the one every new connection starts in.
pub fn current(connection: &Connection, search_path: &str) -> Result<Database> {
    match first_part(search_path) {
        Some(parts) => {
            // `USE x` makes the path x.main; a path of one part may be a schema of the first database, or a database.
            let attached = databases(connection)?;
            let named = attached.into_iter().find(|database| database.name.eq_ignore_ascii_case(&parts));
            named.map_or_else(|| default(connection), Ok)
        }
        None => default(connection),
    }
}

fn default(connection: &Connection) -> Result<Database> {
    let name: String = connection.query_row("SELECT current_database()", [], |row| row.get(0))?;
    database(connection, &name)
}

/// The first identifier of a search path, unquoted: `a` of `a.main,b`, `x.y` of `"x.y".main`.
fn first_part(search_path: &str) -> Option<String> {
    let path = search_path.trim();
    let Some(quoted) = path.strip_prefix('"') else {
        let part = path.split([',', '.']).next().unwrap_or_default().trim();
        return (!part.is_empty()).then(|| part.to_owned());
    };
    let mut part = String::new();
    let mut characters = quoted.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if characters.peek() == Some(&'"') => {
                part.push('"');
                characters.next();
            }
            '"' => break,
            other => part.push(other),
        }
    }
    (!part.is_empty()).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        let database = Database { name: "my \"odd\".db".into(), read_only: false, oid: 1, file: None };
        assert_eq!(database.table("turns"), "\"my \"\"odd\"\".db\".lethe.turns");
    }

    #[test]
    fn the_first_part_of_a_search_path() {
        let part = |path| first_part(path);
        assert_eq!(part("garden.main"), Some("garden".into()));
        assert_eq!(part("garden"), Some("garden".into()));
        assert_eq!(part("a.main,b.main"), Some("a".into()));
        assert_eq!(part("\"x.y\".main,b"), Some("x.y".into()));
        assert_eq!(part("\"say \"\"hi\"\"\".main"), Some("say \"hi\"".into()));
        assert_eq!(part("  "), None);
        assert_eq!(part(""), None);
    }
}
