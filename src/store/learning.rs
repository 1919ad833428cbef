//! The tables of what was learned: `cues`, `suppression` and `feedback`.

use std::collections::HashMap;
use std::sync::Arc;

use duckdb::arrow::array::{Array, ArrayRef, Float32Array, Int64Array, ListArray};
use duckdb::types::Value as Parameter;
use duckdb::{Connection, params, params_from_iter};
use uuid::Uuid;

use super::catalog::Database;
use super::{DERIVED, append, float_lists, ids_relation, retrievals, to_i64, transaction, uuid};
use crate::error::{Error, Result};

/// A kind of question, numbered from 0.
pub type ClusterId = i64;

/// One entry of the suppression matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suppression {
    pub turn: Uuid,
    pub cluster: ClusterId,
    pub score: f64,
    pub hits: i64,
    pub updated_at: i64,
}

/// The cue clusters in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cues {
    /// 0 before the first clustering; then there is one cluster and no centroid.
    pub generation: i64,
    /// Centroid c is that of cluster c.
    pub centroids: Vec<Vec<f32>>,
    /// How many queries they were fitted to.
    pub queries: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Used,
    Ignored,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Ignored => "ignored",
        }
    }
}

/// What was said of a turn as the answer of a retrieval: true for used, false for ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    pub retrieval: Uuid,
    pub turn: Uuid,
    pub used: bool,
}

/// All feedback, oldest first.
pub fn feedback(connection: &Connection, database: &Database) -> Result<Vec<Said>> {
    let sql = format!(
        "SELECT retrieval_id::VARCHAR, turn_id::VARCHAR, verdict FROM {} ORDER BY given_at, turn_id",
        database.table("feedback")
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut said = Vec::new();
    while let Some(row) = rows.next()? {
        let (retrieval, turn) = (uuid(&row.get::<_, String>(0)?)?, uuid(&row.get::<_, String>(1)?)?);
        said.push(Said { retrieval, turn, used: row.get::<_, String>(2)? == Verdict::Used.name() });
    }
    Ok(said)
}

/// The vectors of the stored queries, row by row, oldest first. Those of another width than `dim` are left out: they were
/// asked under another encoder.
pub fn query_vectors(connection: &Connection, database: &Database, dim: usize) -> Result<Vec<f32>> {
    let sql = format!(
        "SELECT embedding FROM {} WHERE len(embedding) = ? ORDER BY asked_at, retrieval_id",
        database.table("retrievals")
    );
    let vectors = read_float_lists(connection, &sql, params![to_i64(dim)])?;
    Ok(vectors.concat())
}

pub fn cues(connection: &Connection, database: &Database) -> Result<Cues> {
    let table = database.table("cues");
    let sql = format!("SELECT coalesce(max(generation), 0), coalesce(sum(queries), 0)::BIGINT FROM {table}");
    let (generation, queries) = connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let centroids = read_float_lists(connection, &format!("SELECT centroid FROM {table} ORDER BY cluster_id"), [])?;
    Ok(Cues { generation, centroids, queries })
}

fn read_float_lists(connection: &Connection, sql: &str, parameters: impl duckdb::Params) -> Result<Vec<Vec<f32>>> {
    let mut statement = connection.prepare(sql)?;
    let mut lists = Vec::new();
    for batch in statement.query_arrow(parameters)? {
        let column = batch.column(0).as_any().downcast_ref::<ListArray>();
        let column = column.ok_or_else(|| Error::Internal("DuckDB returned no list".into()))?;
        for row in 0..column.len() {
            let values = column.value(row);
            let floats = values.as_any().downcast_ref::<Float32Array>();
            lists.push(floats.ok_or_else(|| Error::Internal("DuckDB returned no floats".into()))?.values().to_vec());
        }
    }
    Ok(lists)
}

/// Puts new cues in the place of the old, with the suppression carried over to them, in one transaction.
///
/// `sizes` are the queries of each new cluster; `carried` are the new clusters that an old cluster's suppression goes to.
pub fn replace_cues(
    connection: &Connection,
    database: &Database,
    cues: &Cues,
    sizes: &[i64],
    carried: &HashMap<ClusterId, Vec<ClusterId>>,
) -> Result<()> {
    let (table, suppression) = (database.table("cues"), database.table("suppression"));
    transaction(connection, || {
        let old = read_suppression(connection, database, "")?;
        connection.execute(&format!("DELETE FROM {table}"), [])?;
        let clusters = 0..to_i64(cues.centroids.len());
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("generation", Arc::new(Int64Array::from(vec![cues.generation; cues.centroids.len()]))),
            ("cluster_id", Arc::new(Int64Array::from_iter_values(clusters))),
            ("centroid", float_lists(cues.centroids.iter().map(Vec::as_slice))),
            ("queries", Arc::new(Int64Array::from(sizes.to_vec()))),
        ];
        append(connection, database, "cues", columns)?;
        // Where two old clusters meet in a new one, the stronger evidence stays.
        let mut moved: HashMap<(Uuid, ClusterId), Suppression> = HashMap::new();
        for entry in &old {
            for &cluster in carried.get(&entry.cluster).into_iter().flatten() {
                let entry = Suppression { cluster, ..*entry };
                let slot = moved.entry((entry.turn, cluster)).or_insert(entry);
                if entry.score > slot.score {
                    *slot = entry;
                }
            }
        }
        connection.execute(&format!("DELETE FROM {suppression}"), [])?;
        let mut moved: Vec<Suppression> = moved.into_values().collect();
        moved.sort_by_key(|entry| (entry.cluster, entry.turn));
        insert_suppression(connection, database, &moved)?;
        let ids = format!("UPDATE {} SET cluster_id = ", database.table("retrievals"));
        let dim = cues.centroids.first().map_or(0, Vec::len);
        let nearest = format!(
            "coalesce((SELECT arg_max(cluster_id, (list_inner_product(embedding, centroid), -cluster_id)) FROM {table}), 0) \
             WHERE len(embedding) = {dim}"
        );
        connection.execute(&format!("{ids}{nearest}"), [])?;
        Ok(())
    })
}

/// The suppression of some turns in one cluster.
pub fn suppression_of(
    connection: &Connection,
    database: &Database,
    cluster: ClusterId,
    turns: &[Uuid],
) -> Result<HashMap<Uuid, Suppression>> {
    if turns.is_empty() {
        return Ok(HashMap::new());
    }
    let condition = format!("WHERE cluster_id = {cluster} AND turn_id IN {}", ids_relation(turns));
    Ok(read_suppression(connection, database, &condition)?.into_iter().map(|entry| (entry.turn, entry)).collect())
}

/// The whole suppression matrix, strongest first.
pub fn suppression(connection: &Connection, database: &Database) -> Result<Vec<Suppression>> {
    read_suppression(connection, database, "ORDER BY score DESC, turn_id, cluster_id")
}

/// Every entry of one cluster.
pub fn suppression_in(connection: &Connection, database: &Database, cluster: ClusterId) -> Result<Vec<Suppression>> {
    read_suppression(connection, database, &format!("WHERE cluster_id = {cluster}"))
}

fn read_suppression(connection: &Connection, database: &Database, rest: &str) -> Result<Vec<Suppression>> {
    let sql = format!(
        "SELECT turn_id::VARCHAR, cluster_id, score, hits, epoch_us(updated_at) FROM {} {rest}",
        database.table("suppression")
    );
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        entries.push(Suppression {
            turn: uuid(&row.get::<_, String>(0)?)?,
            cluster: row.get(1)?,
            score: row.get(2)?,
            hits: row.get(3)?,
            updated_at: row.get(4)?,
        });
    }
    Ok(entries)
}

/// Writes entries in the place of those of the same turn and cluster; entries with score 0 are only taken away.
pub fn put_suppression(connection: &Connection, database: &Database, entries: &[Suppression]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> =
        entries.iter().map(|entry| format!("('{}'::UUID, {})", entry.turn, entry.cluster)).collect();
    let sql = format!(
        "DELETE FROM {} WHERE (turn_id, cluster_id) IN (VALUES {})",
        database.table("suppression"),
        keys.join(",")
    );
    connection.execute(&sql, [])?;
    let kept: Vec<Suppression> = entries.iter().copied().filter(|entry| entry.score > 0.0).collect();
    insert_suppression(connection, database, &kept)
}

fn insert_suppression(connection: &Connection, database: &Database, entries: &[Suppression]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    let rows: Vec<String> = entries
        .iter()
        .map(|e| {
            format!(
                "('{}', {}, {:?}::DOUBLE, {}, make_timestamp({}))",
                e.turn, e.cluster, e.score, e.hits, e.updated_at
            )
        })
        .collect();
    connection.execute(&format!("INSERT INTO {} VALUES {}", database.table("suppression"), rows.join(",")), [])?;
    Ok(())
}

/// Deletes all rows of a table of what was learned. Returns how many.
pub fn clear(connection: &Connection, database: &Database, table: &str) -> Result<usize> {
    Ok(connection.execute(&format!("DELETE FROM {}", database.table(table)), [])?)
}

/// Which entries of the suppression matrix to take back: all, of one cluster, of the turns of one session, or both.
pub fn reset(
    connection: &Connection,
    database: &Database,
    cluster: Option<i64>,
    session: Option<&str>,
) -> Result<usize> {
    let mut conditions = vec!["true".to_owned()];
    let mut parameters = Vec::new();
    if let Some(cluster) = cluster {
        conditions.push("cluster_id = ?".to_owned());
        parameters.push(Parameter::BigInt(cluster));
    }
    if let Some(session) = session {
        conditions.push(format!("turn_id IN (SELECT turn_id FROM {} WHERE session_id = ?)", database.table("turns")));
        parameters.push(Parameter::Text(session.to_owned()));
    }
    let sql = format!("DELETE FROM {} WHERE {}", database.table("suppression"), conditions.join(" AND "));
    Ok(connection.execute(&sql, params_from_iter(parameters))?)
}

pub fn insert_feedback(
    connection: &Connection,
    database: &Database,
    retrieval: Uuid,
    verdicts: &[(Uuid, Verdict)],
    given_at: i64,
) -> Result<()> {
    let sql = format!("INSERT INTO {} VALUES (?::UUID, ?::UUID, ?, make_timestamp(?))", database.table("feedback"));
    let mut statement = connection.prepare(&sql)?;
    for (turn, verdict) in verdicts {
        statement.execute(params![retrieval.to_string(), turn.to_string(), verdict.name(), given_at])?;
    }
    Ok(())
}

/// Which of `turns` the store holds.
pub fn known_turns(connection: &Connection, database: &Database, turns: &[Uuid]) -> Result<Vec<Uuid>> {
    let sql =
        format!("SELECT turn_id::VARCHAR FROM {} WHERE turn_id IN {}", database.table("turns"), ids_relation(turns));
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut known = Vec::new();
    while let Some(row) = rows.next()? {
        known.push(uuid(&row.get::<_, String>(0)?)?);
    }
    Ok(known)
}

/// Deletes what refers to turns that are being forgotten. Returns the rows deleted, table by table; what was found of them goes too.
pub fn delete_derived(
    connection: &Connection,
    database: &Database,
    turns: &[Uuid],
) -> Result<Vec<(&'static str, usize)>> {
    let ids = ids_relation(turns);
    let delete = |table| {
        let sql = format!("DELETE FROM {} WHERE turn_id IN {ids}", database.table(table));
        Ok((table, connection.execute(&sql, [])?))
    };
    retrievals::drop_turns(connection, database, &format!("turn_id IN {ids}"))?;
    DERIVED.into_iter().map(delete).collect()
}
