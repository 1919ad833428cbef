//! The SQL functions: arguments in, rows out. One file for each; `host` is the only DuckDB function code.

pub mod arguments;
mod host;
mod on_store;
pub mod settings;
mod value;

mod adapt;
mod add;
mod create;
mod feedback;
mod forget;
mod recluster;
mod reset;
mod retrieve;
mod search;
mod stats;
mod suppression;
mod sync;
mod version;

use host::{ScalarFunction, TableFunction};

/// Everything that LOAD registers, besides the settings.
static TABLE_FUNCTIONS: [TableFunction; 12] = [
    create::FUNCTION,
    add::FUNCTION,
    sync::FUNCTION,
    retrieve::FUNCTION,
    feedback::FUNCTION,
    forget::FUNCTION,
    suppression::FUNCTION,
    reset::FUNCTION,
    recluster::FUNCTION,
    adapt::FUNCTION,
    stats::FUNCTION,
    version::FUNCTION,
];
static SCALAR_FUNCTIONS: [ScalarFunction; 1] = [search::FUNCTION];
