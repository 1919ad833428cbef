//! The table `turns`: what was said.

use std::collections::HashMap;

use duckdb::arrow::array::StringArray;
use duckdb::types::{TimeUnit, Value as Parameter};
use duckdb::{Connection, Row, params, params_from_iter};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::catalog::Database;
use super::instance::Instance;
use super::{column, ids_relation, uuid};
use crate::error::{Error, Result};

/// A turn: one thing that one speaker said.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    pub id: Uuid,
    pub session: Option<String>,
    pub speaker: Option<String>,
    /// Microseconds since 1970, UTC; `None` when it is not known. The infinities are DuckDB's: ±i64::MAX.
    pub said_at: Option<i64>,
    pub content: String,
}

/// A turn to be stored.
#[derive(Clone, Debug)]
pub struct NewTurn {
    pub turn: Turn,
    /// JSON text.
    pub metadata: Option<String>,
}

/// A session, `None` for the turns that belong to none.
pub type Session = Option<String>;

/// What a session's turns add up to: equal exactly when they are unchanged, but for a collision of 64-bit hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    pub turns: u64,
    hashes: String,
}

/// The fingerprints of all sessions, and how many turns have a date on which they end.
#[derive(Debug, Default)]
pub struct Fingerprints {
    pub sessions: HashMap<Session, Fingerprint>,
    pub expiring: u64,
}

/// DuckDB makes the hash of several columns by adding up theirs without carry, as `bit_xor` does with rows: two turns that swapped
/// their contents would add up to the same. So each row's hash is hashed once more.
pub fn fingerprints(connection: &Connection, database: &Database) -> Result<Fingerprints> {
    let sql = format!(
        "SELECT session_id, count(*), bit_xor(hash(hash(turn_id, speaker, said_at, content)))::VARCHAR, count(valid_until) \
         FROM {} GROUP BY session_id",
        database.table("turns")
    );
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map([], |row| {
        Ok((row.get(0)?, Fingerprint { turns: row.get(1)?, hashes: row.get(2)? }, row.get::<_, u64>(3)?))
    })?;
    let mut found = Fingerprints::default();
    for row in rows {
        let (session, fingerprint, expiring) = row?;
        found.sessions.insert(session, fingerprint);
        found.expiring += expiring;
    }
    Ok(found)
}

/// A turn's columns, in the order [`turn_of`] reads them.
fn turn_columns() -> String {
    let said_at = format!(
        "CASE WHEN isfinite(said_at) THEN epoch_us(said_at) WHEN said_at > 'epoch' THEN {0} ELSE -{0} END",
        i64::MAX
    );
    format!("turn_id::VARCHAR, session_id, speaker, CASE WHEN said_at IS NOT NULL THEN {said_at} END, content")
}

fn turn_of(row: &Row) -> Result<Turn> {
    Ok(Turn {
        id: uuid(&row.get::<_, String>(0)?)?,
        session: row.get(1)?,
        speaker: row.get(2)?,
        said_at: row.get(3)?,
        content: row.get(4)?,
    })
}

/// All turns of the given sessions, session by session, each in the order in which it was said: (said_at, turn_id), turns
/// without a date first.
pub fn of_sessions(connection: &Connection, database: &Database, sessions: &[&Session]) -> Result<Vec<Turn>> {
    let names: Vec<Parameter> = sessions.iter().filter_map(|session| (*session).clone().map(Parameter::Text)).collect();
    let places = vec!["?"; names.len()].join(",");
    let orphans = if sessions.iter().any(|session| session.is_none()) { "OR session_id IS NULL" } else { "" };
    let sql = format!(
        "SELECT {} FROM {} WHERE session_id IN (SELECT unnest([{places}]::VARCHAR[])) {orphans} \
         ORDER BY session_id NULLS FIRST, said_at NULLS FIRST, turn_id",
        turn_columns(),
        database.table("turns")
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query(params_from_iter(names))?;
    let mut turns = Vec::new();
    while let Some(row) = rows.next()? {
        turns.push(turn_of(row)?);
    }
    Ok(turns)
}

pub fn insert(connection: &Connection, database: &Database, turns: &[NewTurn]) -> Result<()> {
    let sql = format!(
        "INSERT INTO {} (turn_id, session_id, speaker, said_at, content, metadata) \
         VALUES (?::UUID, ?, ?, ?, ?, ?)",
        database.table("turns")
    );
    let mut statement = connection.prepare(&sql)?;
    for NewTurn { turn, metadata } in turns {
        statement.execute(params![
            turn.id.to_string(),
            turn.session,
            turn.speaker,
            turn.said_at.map(timestamp),
            turn.content,
            metadata
        ])?;
    }
    Ok(())
}

/// A moment as a parameter. Bound as it is, so that the infinities stay what they are.
fn timestamp(micros: i64) -> Parameter {
    Parameter::Timestamp(TimeUnit::Microsecond, micros)
}

/// Restricts which turns may be ranked, or are to be forgotten.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    pub session: Option<String>,
    pub speaker: Option<String>,
    /// said_at ≥ since, microseconds.
    pub since: Option<i64>,
    /// said_at < until, microseconds.
    pub until: Option<i64>,
    /// A predicate over the columns of `turns`, checked by [`check_predicate`].
    pub predicate: Option<String>,
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The WHERE clause over `table`, and its parameters. Turns that end by `valid_at` are left out.
    ///
    /// The predicate stands over a subquery of its own, so that it cannot reach around the other conditions.
    fn select(&self, table: &str, valid_at: Option<i64>) -> (String, Vec<Parameter>) {
        let mut conditions = vec!["true"];
        let mut parameters = Vec::new();
        let mut add = |condition, parameter: Option<Parameter>| {
            if let Some(parameter) = parameter {
                conditions.push(condition);
                parameters.push(parameter);
            }
        };
        add("(valid_until IS NULL OR valid_until > ?)", valid_at.map(timestamp));
        add("session_id = ?", self.session.clone().map(Parameter::Text));
        add("speaker = ?", self.speaker.clone().map(Parameter::Text));
        add("said_at >= ?", self.since.map(timestamp));
        add("said_at < ?", self.until.map(timestamp));
        let inner = format!("SELECT * FROM {table} WHERE {}", conditions.join(" AND "));
        let predicate = self.predicate.as_deref().unwrap_or("true");
        (format!("SELECT turn_id::VARCHAR FROM ({inner}) AS turns WHERE (\n{predicate}\n)"), parameters)
    }
}

/// The ids of the turns that pass the filter. `valid_at` also leaves out what has ended by then.
pub fn matching(
    connection: &Connection,
    database: &Database,
    filter: &Filter,
    valid_at: Option<i64>,
) -> Result<Vec<Uuid>> {
    let (sql, parameters) = filter.select(&database.table("turns"), valid_at);
    let mut statement = connection.prepare(&sql).map_err(|error| predicate_error(filter, error))?;
    let refused = |error| predicate_error(filter, error);
    let mut ids = Vec::new();
    for batch in statement.stream_arrow(params_from_iter(parameters)).map_err(refused)? {
        let batch = batch.map_err(refused)?;
        for id in column::<StringArray>(&batch, 0)?.iter().flatten() {
            ids.push(uuid(id)?);
        }
    }
    Ok(ids)
}

const PREDICATE: &str = "a single boolean expression over the columns of lethe.turns (turn_id, session_id, speaker, said_at, \
                         content, metadata, valid_until)";

fn predicate_error(filter: &Filter, error: duckdb::Error) -> Error {
    match &filter.predicate {
        Some(predicate) => {
            Error::argument("filter", format!("'{predicate}', which DuckDB refuses: {error}"), PREDICATE)
        }
        None => error.into(),
    }
}

/// Refuses a `filter` that is not one boolean expression.
///
/// Parsed between parentheses it must be one statement, which a second statement or an unbalanced comment is not. Parsed as
/// the condition of a CASE it must be one too, which what closes those parentheses, or brings clauses of its own, is not.
/// Then its type is asked for. Nothing of it is executed.
pub fn check_predicate(
    instance: &Instance,
    connection: &Connection,
    database: &Database,
    predicate: &str,
) -> Result<()> {
    let refuse = |why: &str| Error::argument("filter", format!("'{predicate}'{why}"), PREDICATE);
    for frame in ["SELECT 1 WHERE (\n{}\n)", "SELECT CASE WHEN\n{}\nTHEN 1 END"] {
        match instance.statements(&frame.replace("{}", predicate))? {
            Ok(1) => {}
            Ok(_) => return Err(refuse(", which is not one expression")),
            Err(why) => return Err(refuse(&format!(", which does not parse as one: {}", first_line(&why)))),
        }
    }
    let sql = format!("DESCRIBE SELECT (\n{predicate}\n) AS predicate FROM {} AS turns", database.table("turns"));
    let kind: String = connection
        .query_row(&sql, [], |row| row.get(1))
        .map_err(|error| refuse(&format!(", which DuckDB refuses: {}", first_line(&error.to_string()))))?;
    if kind == "BOOLEAN" { Ok(()) } else { Err(refuse(&format!(", which is of type {kind}"))) }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// The turns whose states may have been computed behind one of `ids`: those that follow it in its session before `context`
/// wordpieces have been said.
///
/// Words are counted instead of wordpieces. There are never more words than pieces, so none is missed; a few may be
/// named in vain.
pub fn encoded_behind(connection: &Connection, database: &Database, ids: &[Uuid], context: usize) -> Result<Vec<Uuid>> {
    let sql = format!(
        "WITH counted AS (
             SELECT turn_id, session_id, said_at, turn_id IN {ids} AS gone,
                    len(regexp_extract_all(content, '\\S*[\\p{{L}}\\p{{N}}]\\S*')) AS words
             FROM {turns} WHERE session_id IN (SELECT session_id FROM {turns} WHERE turn_id IN {ids})),
         placed AS (
             SELECT turn_id, gone, words, sum(words) OVER said AS said FROM counted
             WINDOW said AS (PARTITION BY session_id ORDER BY said_at NULLS FIRST, turn_id)),
         reached AS (
             SELECT p.turn_id, p.gone, p.said - p.words - max(CASE WHEN p.gone THEN p.said END) OVER before AS between
             FROM placed p JOIN counted c USING (turn_id)
             WINDOW before AS (PARTITION BY c.session_id ORDER BY c.said_at NULLS FIRST, c.turn_id))
         SELECT turn_id::VARCHAR FROM reached WHERE NOT gone AND between < {context}",
        ids = ids_relation(ids),
        turns = database.table("turns"),
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut behind = Vec::new();
    while let Some(row) = rows.next()? {
        behind.push(uuid(&row.get::<_, String>(0)?)?);
    }
    Ok(behind)
}

/// Deletes turns; returns how many there were.
pub fn delete(connection: &Connection, database: &Database, ids: &[Uuid]) -> Result<usize> {
    let sql = format!("DELETE FROM {} WHERE turn_id IN {}", database.table("turns"), ids_relation(ids));
    Ok(connection.execute(&sql, [])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_given_is_asked_for() {
        let filter = Filter {
            speaker: Some("Ana".into()),
            until: Some(5),
            predicate: Some("1 = 1".into()),
            ..Filter::default()
        };
        let (sql, parameters) = filter.select("t", Some(7));
        assert_eq!(
            sql,
            "SELECT turn_id::VARCHAR FROM (SELECT * FROM t WHERE true AND (valid_until IS NULL OR valid_until > \
             ?) AND speaker = ? AND said_at < ?) AS turns WHERE (\n1 = 1\n)"
        );
        assert_eq!(parameters, [timestamp(7), Parameter::Text("Ana".into()), timestamp(5)]);
        assert!(Filter::default().is_empty() && !filter.is_empty());
    }
}
