//! `memory_create`: makes the schema `lethe` in an attached database.

use super::host::{Arguments, Caller, Plan, TableFunction};
use super::value::Type;
use crate::error::{Error, Result};
use crate::memory::create::{Create, create};
use crate::memory::engine::database;

pub const FUNCTION: TableFunction = TableFunction {
    name: "memory_create",
    positional: &[],
    named: &[
        ("store", Type::Varchar),
        ("encoder", Type::Varchar),
        ("learning", Type::Varchar),
        ("template", Type::Varchar),
        ("context", Type::BigInt),
        ("code_bits", Type::BigInt),
    ],
    bind,
};

fn bind(caller: &Caller, arguments: &Arguments) -> Result<Plan> {
    let store = arguments.text("store")?;
    let code_bits = arguments.whole("code_bits", i64::MIN..=i64::MAX)?;
    if let Some(bits) = code_bits.filter(|bits| ![4, 8].contains(bits)) {
        return Err(Error::argument("code_bits", bits, "4 or 8"));
    }
    let request = Create {
        encoder: arguments.text("encoder")?,
        learning: arguments.text("learning")?,
        template: arguments.text("template")?,
        context: arguments.whole("context", 0..=4096)?.map(|n| n as usize),
        code_bits: code_bits.map(|n| n as usize),
    };
    let caller = caller.clone();
    Ok(Plan {
        columns: vec![
            ("store", Type::Varchar),
            ("created", Type::Boolean),
            ("encoder", Type::Varchar),
            ("encoder_id", Type::Varchar),
            ("learning", Type::Varchar),
            ("template", Type::Varchar),
            ("context", Type::BigInt),
            ("code_bits", Type::BigInt),
        ],
        run: Box::new(move || {
            let connection = caller.engine.connect()?;
            let database = database(&connection, store.as_deref(), &caller.search_path)?;
            let created = create(&connection, &database, &request, &caller.settings.models)?;
            let config = created.config;
            Ok(vec![vec![
                database.name.into(),
                (created.found == 0).into(),
                config.encoder.name.into(),
                config.encoder.id.into(),
                config.learning.into(),
                config.template.into(),
                config.encoder.context.into(),
                config.encoder.code_bits.into(),
            ]])
        }),
    })
}
