//! `memory_adapt`: trains the store's query adapter on the feedback it was given.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::on_store::on_store;
use super::retrieve::asker;
use super::value::Type;
use crate::error::Result;
use crate::memory::adapt::adapt;

pub const FUNCTION: TableFunction =
    TableFunction { name: "memory_adapt", positional: &[], named: &[("store", Type::Varchar)], bind };

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let columns = vec![
        ("store", Type::Varchar),
        ("questions", Type::BigInt),
        ("held_out", Type::BigInt),
        ("epochs", Type::BigInt),
        ("ndcg10_before", Type::Double),
        ("ndcg10_after", Type::Double),
        ("used", Type::Boolean),
        ("note", Type::Varchar),
    ];
    on_store(caller, arguments, columns, move |caller, connection, store| {
        let adaptation = adapt(&asker(caller), connection, store, caller.settings.progress)?;
        let (before, after) = adaptation.measured.unzip();
        Ok(vec![vec![
            store.database.name.as_str().into(),
            adaptation.learned.into(),
            adaptation.held_out.into(),
            adaptation.epochs.into(),
            before.into(),
            after.into(),
            adaptation.used.into(),
            adaptation.note.into(),
        ]])
    })
}
