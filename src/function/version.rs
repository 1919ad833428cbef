//! `memory_version`: what is running. Touches no model.

use super::host::{Arguments, Caller, Plan, TableFunction, c_api_version, library_version};
use super::value::{Type, Value};
use crate::error::Result;
use crate::model::runtime;
use crate::store::schema;

pub const FUNCTION: TableFunction = TableFunction { name: "memory_version", positional: &[], named: &[], bind };

fn bind(caller: &Caller, _: &Arguments) -> Result<Plan> {
    let models = caller.settings.models.clone();
    Ok(Plan {
        columns: vec![("component", Type::Varchar), ("version", Type::Varchar)],
        run: Box::new(move || {
            let row = |component: &str, version: Value| vec![component.into(), version];
            let text = |text: &str| Value::from(Some(text.to_owned()).filter(|text| !text.is_empty()));
            let loaded = runtime::loaded().map(|path| path.to_string_lossy().into_owned());
            Ok(vec![
                row("lethe", env!("CARGO_PKG_VERSION").into()),
                row("schema", schema::VERSION.to_string().into()),
                row("duckdb", library_version().into()),
                row("c_api", c_api_version().into()),
                row("onnxruntime", text(&models.onnxruntime.to_string_lossy())),
                row("onnxruntime_loaded", loaded.into()),
                row("encoder", text(&models.encoder)),
                row("reranker", text(&models.reranker)),
            ])
        }),
    })
}
