//! The table `retrievals`: the questions that were asked, and what was found.

use std::sync::Arc;

use duckdb::arrow::array::{
    Array, ArrayRef, Float32Array, Float32Builder, Int64Array, ListArray, ListBuilder, StringArray, StringBuilder,
    StructArray, StructBuilder, TimestampMicrosecondArray,
};
use duckdb::arrow::datatypes::{DataType, Field, Fields};
use duckdb::{Connection, params};
use uuid::Uuid;

use super::catalog::Database;
use super::learning::ClusterId;
use super::{append, cast, column, float_lists, to_i64, uuid};
use crate::error::Result;
use crate::rank::precedent::Member;

/// A retrieval to be remembered.
pub struct NewRetrieval<'a> {
    pub id: Uuid,
    /// Microseconds since 1970, UTC.
    pub asked_at: i64,
    pub query: &'a str,
    pub embedding: &'a [f32],
    pub cluster: ClusterId,
    pub pool: &'a [Member<Uuid>],
}

/// A retrieval that was remembered.
#[derive(Clone, Debug, PartialEq)]
pub struct Retrieved {
    pub id: Uuid,
    pub query: String,
    /// Unit vector. Of another width than the encoder's if it was asked under another.
    pub embedding: Vec<f32>,
    pub pool: Vec<Member<Uuid>>,
}

/// Tells apart tables whose rows differ in more than the vectors and the pools: exact but for collisions of 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    rows: u64,
    hash: u64,
}

impl Fingerprint {
    /// That of the rows of both.
    pub fn and(self, other: Self) -> Self {
        Self { rows: self.rows.wrapping_add(other.rows), hash: self.hash ^ other.hash }
    }
}

/// The fingerprint of the table, or of some of its rows.
pub fn fingerprint(connection: &Connection, database: &Database, only: Option<&[Uuid]>) -> Result<Fingerprint> {
    let these = only.map_or_else(String::new, |ids| {
        let ids: Vec<String> = ids.iter().map(|id| format!("'{id}'")).collect();
        format!("WHERE retrieval_id IN (SELECT unnest([{}]::UUID[]))", ids.join(","))
    });
    let sql = format!(
        "SELECT count(*), coalesce(bit_xor(hash(hash(retrieval_id, asked_at, query))), 0) FROM {} {these}",
        database.table("retrievals")
    );
    let (rows, hash) = connection.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Fingerprint { rows, hash })
}

/// What became of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// How many retrievals there are now.
    pub count: i64,
    /// How many were forgotten.
    pub dropped: usize,
}

/// Remembers a retrieval, and forgets the oldest beyond `kept` that no feedback was given on.
pub fn insert(connection: &Connection, database: &Database, retrieval: &NewRetrieval, kept: usize) -> Result<Kept> {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("retrieval_id", Arc::new(StringArray::from(vec![retrieval.id.to_string()]))),
        ("asked_at", Arc::new(TimestampMicrosecondArray::from(vec![retrieval.asked_at]))),
        ("query", Arc::new(StringArray::from(vec![retrieval.query]))),
        ("embedding", float_lists([retrieval.embedding])),
        ("cluster_id", Arc::new(Int64Array::from(vec![retrieval.cluster]))),
        ("pool", pool_column(retrieval.pool)),
    ];
    append(connection, database, "retrievals", columns)?;
    let table = database.table("retrievals");
    let count: i64 = connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
    // Trimmed a tenth at a time, so that not every retrieval has to delete.
    let kept = to_i64(kept);
    if count <= kept + kept / 10 {
        return Ok(Kept { count, dropped: 0 });
    }
    // Those that feedback was given on are what is learned from, and stay.
    let oldest = format!("SELECT retrieval_id FROM {table} ORDER BY asked_at DESC, retrieval_id DESC OFFSET {kept}");
    let sql = format!(
        "DELETE FROM {table} WHERE retrieval_id IN ({oldest}) AND retrieval_id NOT IN (SELECT retrieval_id FROM {})",
        database.table("feedback")
    );
    let dropped = connection.execute(&sql, [])?;
    Ok(Kept { count: count - to_i64(dropped), dropped })
}

/// One row of the column `pool`.
fn pool_column(pool: &[Member<Uuid>]) -> ArrayRef {
    let field = |name, kind| Arc::new(Field::new(name, kind, true));
    let fields: Fields =
        vec![field("turn_id", DataType::Utf8), field("plain", DataType::Float32), field("learned", DataType::Float32)]
            .into();
    let mut turns = StringBuilder::new();
    let (mut plain, mut learned) = (Float32Builder::new(), Float32Builder::new());
    for member in pool {
        turns.append_value(member.id.to_string());
        plain.append_option(member.plain);
        learned.append_option(member.learned);
    }
    let mut members = StructBuilder::new(fields, vec![Box::new(turns), Box::new(plain), Box::new(learned)]);
    pool.iter().for_each(|_| members.append(true));
    let mut lists = ListBuilder::new(members);
    lists.append(true);
    Arc::new(lists.finish())
}

/// All retrievals, oldest first.
pub fn read(connection: &Connection, database: &Database) -> Result<Vec<Retrieved>> {
    let sql = format!(
        "SELECT retrieval_id::VARCHAR, query, embedding, pool::STRUCT(turn_id VARCHAR, plain FLOAT, learned FLOAT)[] \
         FROM {} ORDER BY asked_at, retrieval_id",
        database.table("retrievals")
    );
    let mut statement = connection.prepare(&sql)?;
    let mut retrievals = Vec::new();
    for batch in statement.query_arrow([])? {
        let (ids, queries) = (column::<StringArray>(&batch, 0)?, column::<StringArray>(&batch, 1)?);
        let (embeddings, pools) = (column::<ListArray>(&batch, 2)?, column::<ListArray>(&batch, 3)?);
        for row in 0..batch.num_rows() {
            retrievals.push(Retrieved {
                id: uuid(ids.value(row))?,
                query: queries.value(row).to_owned(),
                embedding: cast::<Float32Array>(&embeddings.value(row))?.values().to_vec(),
                pool: if pools.is_null(row) { Vec::new() } else { members(&pools.value(row))? },
            });
        }
    }
    Ok(retrievals)
}

fn members(pool: &ArrayRef) -> Result<Vec<Member<Uuid>>> {
    let pool = cast::<StructArray>(pool)?;
    let (turns, plain, learned) = (
        cast::<StringArray>(pool.column(0))?,
        cast::<Float32Array>(pool.column(1))?,
        cast::<Float32Array>(pool.column(2))?,
    );
    let score = |scores: &Float32Array, row| (!scores.is_null(row)).then(|| scores.value(row));
    let known = (0..pool.len()).filter(|&row| !pool.is_null(row) && !turns.is_null(row));
    let member =
        |row| Ok(Member { id: uuid(turns.value(row))?, plain: score(plain, row), learned: score(learned, row) });
    known.map(member).collect()
}

/// The cluster of a stored retrieval; `None` when the store does not have it.
pub fn cluster_of(connection: &Connection, database: &Database, retrieval: Uuid) -> Result<Option<ClusterId>> {
    let sql = format!("SELECT cluster_id FROM {} WHERE retrieval_id = ?::UUID", database.table("retrievals"));
    let mut statement = connection.prepare(&sql)?;
    let mut rows = statement.query_map(params![retrieval.to_string()], |row| row.get(0))?;
    Ok(rows.next().transpose()?)
}

/// Takes turns out of what was found: those of whom `gone`, a condition on `turn_id`, is true.
pub fn drop_turns(connection: &Connection, database: &Database, gone: &str) -> Result<()> {
    let table = database.table("retrievals");
    let found = format!(
        "SELECT retrieval_id, member, (member).turn_id AS turn_id FROM (SELECT retrieval_id, unnest(pool) AS member FROM {table})"
    );
    let rest = format!(
        "SELECT retrieval_id, list(member) FILTER (WHERE NOT gone) AS pool FROM (SELECT *, {gone} AS gone FROM ({found})) \
         GROUP BY retrieval_id HAVING bool_or(gone)"
    );
    // Looked for first: an UPDATE of nothing would still write to the log of the database.
    let touched: u64 = connection.query_row(&format!("SELECT count(*) FROM ({rest})"), [], |row| row.get(0))?;
    if touched > 0 {
        let sql = format!(
            "UPDATE {table} SET pool = coalesce(rest.pool, []) FROM ({rest}) AS rest \
             WHERE {table}.retrieval_id = rest.retrieval_id"
        );
        connection.execute(&sql, [])?;
    }
    Ok(())
}
