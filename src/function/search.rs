//! `memory_search`: retrieval as a scalar, for a column of questions.

use super::host::{Caller, Row, ScalarFunction};
use super::retrieve::{ANSWER, answer_row, asker, limit, question};
use super::value::{Type, Value};
use crate::error::Result;
use crate::memory::request::{Request, StoreChoice};
use crate::memory::retrieve::retrieve;
use crate::store::turns::Filter;

const ANSWERS: Type = Type::Struct(&ANSWER);

pub const FUNCTION: ScalarFunction = ScalarFunction {
    name: "memory_search",
    parameters: &[Type::Varchar, Type::BigInt],
    returns: Type::List(&ANSWERS),
    run,
};

/// Answers all rows of a chunk; those that want equally many answers are asked together, of stores synchronised once.
fn run(caller: &Caller, rows: &[Row]) -> Result<Vec<Value>> {
    let mut answered = vec![Value::Null; rows.len()];
    let mut asked: Vec<(usize, usize, &str)> = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        if let (Some(question), Some(k)) = (question(&row[0])?, limit(&row[1])?) {
            asked.push((k, number, question));
        }
    }
    if asked.is_empty() {
        return Ok(answered);
    }
    asked.sort_unstable();
    let connection = caller.engine.connect()?;
    for together in asked.chunk_by(|a, b| a.0 == b.0) {
        let request = Request {
            k: together[0].0,
            stores: StoreChoice::Current,
            filter: Filter::default(),
            rerank: None,
            require_reranker: caller.settings.require_reranker,
            learn: caller.settings.learn,
            progress: caller.settings.progress,
        };
        let questions: Vec<&str> = together.iter().map(|(_, _, question)| *question).collect();
        let answers = retrieve(&asker(caller), &connection, &questions, &request)?;
        for ((_, number, _), answers) in together.iter().zip(answers) {
            let fields = |row: Row| ANSWER.iter().map(|(name, _)| (*name).to_owned()).zip(row).collect();
            let structs = answers.iter().map(|answer| Value::Struct(fields(answer_row(answer)))).collect();
            answered[*number] = Value::List(structs);
        }
    }
    Ok(answered)
}
