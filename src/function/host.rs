//! DuckDB as the host: loads us, registers functions and settings, calls us back.
//!
//! The rest of `function` is safe code: a table function is a `bind` that turns arguments into a [`Plan`], and a plan is
//! columns and a closure that makes the rows. Every callback passes one gate that turns errors and panics into query errors.

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex};

use duckdb::ffi;

use super::settings::{Setting, Settings};
use super::value::{Column, Type, Value, c_string, read_row, take};
use crate::error::{Error, Result};
use crate::memory::Engine;
use crate::store::instance::{Instance, refusal};

/// The C API version the binary asks for: the lowest that has what we use, so that one binary serves every host.
const C_API_VERSION: &CStr = c"v1.2.0";

/// The columns of a row, in the order of the plan.
pub type Row = Vec<Value>;
pub type Columns = Vec<(&'static str, Type)>;

/// A table function as DuckDB is told of it.
pub struct TableFunction {
    pub name: &'static str,
    pub positional: &'static [Type],
    pub named: &'static [(&'static str, Type)],
    /// Checks the arguments and says what will be returned. Has no effects: EXPLAIN comes this far.
    pub bind: fn(&Caller, &Arguments) -> Result<Plan>,
}

/// What a call will return, and how. Running it may happen more than once, for a prepared statement.
pub struct Plan {
    pub columns: Columns,
    pub run: Box<dyn Fn() -> Result<Vec<Row>> + Send + Sync>,
}

/// A scalar function as DuckDB is told of it. It gets all rows of a chunk at once.
pub struct ScalarFunction {
    pub name: &'static str,
    pub parameters: &'static [Type],
    pub returns: Type,
    pub run: fn(&Caller, &[Row]) -> Result<Vec<Value>>,
}

/// Who calls: the instance, and the calling connection's settings and current database.
#[derive(Clone)]
pub struct Caller {
    pub engine: Arc<Engine>,
    pub settings: Settings,
    /// The caller's `search_path`, empty if it never said USE.
    pub search_path: String,
}

/// The arguments of one call.
pub struct Arguments {
    positional: Vec<Value>,
    named: Vec<(&'static str, Value)>,
}

impl Arguments {
    pub fn positional(&self, index: usize) -> &Value {
        self.positional.get(index).unwrap_or(&Value::Null)
    }

    /// A named argument; `None` when the call does not have it.
    pub fn named(&self, name: &str) -> Option<&Value> {
        self.named.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }
}

/// What a registered function carries: itself, and the instance it was registered with.
struct Registered<F: 'static> {
    function: &'static F,
    engine: Arc<Engine>,
}

/// Called by DuckDB on LOAD.
///
/// # Safety
///
/// Called by DuckDB, with its extension access structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lethe_init_c_api(
    info: ffi::duckdb_extension_info,
    access: *const ffi::duckdb_extension_access,
) -> bool {
    // SAFETY: DuckDB hands over a valid access structure.
    let loaded = guard(|| unsafe { load(info, access) });
    match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            // SAFETY: as above; the message lives across the call.
            if let Some(set_error) = unsafe { (*access).set_error } {
                let message = c_string(&error.to_string());
                unsafe { set_error(info, message.as_ptr()) };
            }
            false
        }
    }
}

/// # Safety
///
/// As [`lethe_init_c_api`].
unsafe fn load(info: ffi::duckdb_extension_info, access: *const ffi::duckdb_extension_access) -> Result<bool> {
    let missing = |what: &str| Error::Internal(format!("DuckDB handed over no {what}"));
    // SAFETY: the access structure is valid. The table of functions is only as long as the version of DuckDB made it, so the
    // version is read first, from a field that every version has, and the whole table only if the version is one of ours.
    unsafe {
        let get_api = (*access).get_api.ok_or_else(|| missing("get_api"))?;
        let api = get_api(info, C_API_VERSION.as_ptr()).cast::<ffi::duckdb_ext_api_v1>();
        if api.is_null() {
            // DuckDB has set the error: it does not have this version of its C API.
            return Ok(false);
        }
        let library_version = (*ptr::addr_of!((*api).duckdb_library_version)).ok_or_else(|| missing("version"))?;
        let version = CStr::from_ptr(library_version()).to_string_lossy().into_owned();
        if let Some(why) = refusal(&version) {
            return Err(Error::Argument(why));
        }
        let version = C_API_VERSION.to_str().map_err(|_| missing("C API version"))?;
        if !ffi::duckdb_rs_extension_api_init(info, access, version).map_err(|why| Error::Internal(why.into()))? {
            return Ok(false);
        }
        let get_database = (*access).get_database.ok_or_else(|| missing("get_database"))?;
        let database = get_database(info);
        if database.is_null() {
            return Ok(false);
        }
        let instance = Instance::borrow(*database).ok_or_else(|| missing("database"))?;
        let mut connection = ptr::null_mut();
        if ffi::duckdb_connect(*database, &mut connection) != ffi::DuckDBSuccess {
            return Err(missing("connection"));
        }
        let registered = register_all(connection, &Arc::new(Engine::new(instance)));
        ffi::duckdb_disconnect(&mut connection);
        registered.map(|()| true)
    }
}

/// # Safety
///
/// `connection` is a valid connection.
unsafe fn register_all(connection: ffi::duckdb_connection, engine: &Arc<Engine>) -> Result<()> {
    // SAFETY: by the caller's promise.
    unsafe {
        super::settings::ALL.iter().try_for_each(|setting| register_setting(connection, setting))?;
        super::TABLE_FUNCTIONS.iter().try_for_each(|function| register_table(connection, function, engine))?;
        super::SCALAR_FUNCTIONS.iter().try_for_each(|function| register_scalar(connection, function, engine))
    }
}

/// # Safety
///
/// `connection` is a valid connection.
unsafe fn register_setting(connection: ffi::duckdb_connection, setting: &Setting) -> Result<()> {
    let (name, description) = (c_string(setting.name), c_string(&setting.described()));
    let default = match (setting.default)() {
        // SAFETY: fresh values, owned by us.
        Value::Boolean(x) => unsafe { ffi::duckdb_create_bool(x) },
        Value::BigInt(x) => unsafe { ffi::duckdb_create_int64(x) },
        Value::Double(x) => unsafe { ffi::duckdb_create_double(x) },
        Value::Varchar(x) => unsafe { ffi::duckdb_create_varchar_length(x.as_ptr().cast(), x.len() as u64) },
        other => return Err(Error::Internal(format!("setting {} has {} for a default", setting.name, other.kind()))),
    };
    // SAFETY: every handle is made here, copied by DuckDB and destroyed here.
    unsafe {
        let mut option = ffi::duckdb_create_config_option();
        ffi::duckdb_config_option_set_name(option, name.as_ptr());
        ffi::duckdb_config_option_set_type(option, setting.kind.logical().0);
        ffi::duckdb_config_option_set_default_value(option, default);
        ffi::duckdb_config_option_set_description(option, description.as_ptr());
        let state = ffi::duckdb_register_config_option(connection, option);
        ffi::duckdb_destroy_config_option(&mut option);
        ffi::duckdb_destroy_value(&mut { default });
        registered(state, setting.name)
    }
}

/// # Safety
///
/// `connection` is a valid connection.
unsafe fn register_table(
    connection: ffi::duckdb_connection,
    function: &'static TableFunction,
    engine: &Arc<Engine>,
) -> Result<()> {
    let extra = Box::into_raw(Box::new(Registered { function, engine: engine.clone() }));
    // SAFETY: names and types are copied; the extra information is DuckDB's to free, with the destructor it is given.
    unsafe {
        let mut handle = ffi::duckdb_create_table_function();
        ffi::duckdb_table_function_set_name(handle, c_string(function.name).as_ptr());
        for kind in function.positional {
            ffi::duckdb_table_function_add_parameter(handle, kind.logical().0);
        }
        for (name, kind) in function.named {
            ffi::duckdb_table_function_add_named_parameter(handle, c_string(name).as_ptr(), kind.logical().0);
        }
        ffi::duckdb_table_function_set_extra_info(handle, extra.cast(), Some(drop_box::<Registered<TableFunction>>));
        ffi::duckdb_table_function_set_bind(handle, Some(bind_table));
        ffi::duckdb_table_function_set_init(handle, Some(init_table));
        ffi::duckdb_table_function_set_function(handle, Some(run_table));
        let state = ffi::duckdb_register_table_function(connection, handle);
        ffi::duckdb_destroy_table_function(&mut handle);
        registered(state, function.name)
    }
}

/// # Safety
///
/// `connection` is a valid connection.
unsafe fn register_scalar(
    connection: ffi::duckdb_connection,
    function: &'static ScalarFunction,
    engine: &Arc<Engine>,
) -> Result<()> {
    let extra = Box::into_raw(Box::new(Registered { function, engine: engine.clone() }));
    // SAFETY: as in `register_table`.
    unsafe {
        let mut handle = ffi::duckdb_create_scalar_function();
        ffi::duckdb_scalar_function_set_name(handle, c_string(function.name).as_ptr());
        for kind in function.parameters {
            ffi::duckdb_scalar_function_add_parameter(handle, kind.logical().0);
        }
        ffi::duckdb_scalar_function_set_return_type(handle, function.returns.logical().0);
        // It reads tables that its arguments do not name, so the same arguments may give another answer.
        ffi::duckdb_scalar_function_set_volatile(handle);
        // NULL arguments are ours to handle: a whole chunk is answered in one go.
        ffi::duckdb_scalar_function_set_special_handling(handle);
        ffi::duckdb_scalar_function_set_extra_info(handle, extra.cast(), Some(drop_box::<Registered<ScalarFunction>>));
        ffi::duckdb_scalar_function_set_bind(handle, Some(bind_scalar));
        ffi::duckdb_scalar_function_set_function(handle, Some(run_scalar));
        let state = ffi::duckdb_register_scalar_function(connection, handle);
        ffi::duckdb_destroy_scalar_function(&mut handle);
        registered(state, function.name)
    }
}

fn registered(state: ffi::duckdb_state, name: &str) -> Result<()> {
    if state == ffi::DuckDBSuccess {
        Ok(())
    } else {
        Err(Error::Internal(format!("DuckDB refused to register {name}")))
    }
}

unsafe extern "C" fn drop_box<T>(data: *mut c_void) {
    // SAFETY: registered as the destructor of a `Box<T>` that was turned into `data`.
    drop(unsafe { Box::from_raw(data.cast::<T>()) });
}

/// The gate: what fails or panics inside becomes an error.
fn guard<T>(callback: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(callback)).unwrap_or_else(|panic| Err(Error::Internal(panic_text(&*panic))))
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

fn message(name: &str, error: &Error) -> std::ffi::CString {
    c_string(&format!("{name}: {error}"))
}

/// Who calls, as the client context says. Destroys the context.
///
/// # Safety
///
/// `context` is a client context that the caller owns.
unsafe fn caller(engine: &Arc<Engine>, mut context: ffi::duckdb_client_context) -> Result<Caller> {
    let read = |name: &str| {
        let mut scope = ffi::duckdb_config_option_scope_DUCKDB_CONFIG_OPTION_SCOPE_INVALID;
        // SAFETY: the context is valid, and the value is ours to destroy, which `take` does. Every name asked for exists.
        unsafe { take(ffi::duckdb_client_context_get_config_option(context, c_string(name).as_ptr(), &mut scope)) }
    };
    let settings = Settings::read(&read);
    let search_path = match read("search_path") {
        Some(Value::Varchar(path)) => path,
        _ => String::new(),
    };
    // SAFETY: by the caller's promise.
    unsafe { ffi::duckdb_destroy_client_context(&mut context) };
    Ok(Caller { engine: engine.clone(), settings: settings?, search_path })
}

unsafe extern "C" fn bind_table(info: ffi::duckdb_bind_info) {
    // SAFETY: DuckDB passes the extra information of the function it binds.
    let this = unsafe { &*ffi::duckdb_bind_get_extra_info(info).cast::<Registered<TableFunction>>() };
    let bound = guard(|| {
        let function = this.function;
        // SAFETY: `info` is valid; values and context are ours, and are destroyed where they are read.
        let (caller, arguments) = unsafe {
            let mut context = ptr::null_mut();
            ffi::duckdb_table_function_get_client_context(info, &mut context);
            let positional =
                (0..function.positional.len() as u64).map(|i| take(ffi::duckdb_bind_get_parameter(info, i)));
            let named = function.named.iter().filter_map(|(name, _)| {
                Some((*name, take(ffi::duckdb_bind_get_named_parameter(info, c_string(name).as_ptr()))?))
            });
            let arguments = Arguments {
                positional: positional.map(|value| value.unwrap_or(Value::Null)).collect(),
                named: named.collect(),
            };
            (caller(&this.engine, context)?, arguments)
        };
        (function.bind)(&caller, &arguments)
    });
    // SAFETY: `info` is valid; names and types are copied, the plan is DuckDB's to free.
    unsafe {
        match bound {
            Ok(plan) => {
                for (name, kind) in &plan.columns {
                    ffi::duckdb_bind_add_result_column(info, c_string(name).as_ptr(), kind.logical().0);
                }
                ffi::duckdb_bind_set_bind_data(info, Box::into_raw(Box::new(plan)).cast(), Some(drop_box::<Plan>));
            }
            Err(error) => ffi::duckdb_bind_set_error(info, message(this.function.name, &error).as_ptr()),
        }
    }
}

/// The rows of one execution, made when the first is asked for.
#[derive(Default)]
struct Execution {
    rows: Option<std::vec::IntoIter<Row>>,
}

unsafe extern "C" fn init_table(info: ffi::duckdb_init_info) {
    let execution: Box<Mutex<Execution>> = Box::default();
    // SAFETY: `info` is valid, and the execution is DuckDB's to free.
    unsafe {
        ffi::duckdb_init_set_max_threads(info, 1);
        ffi::duckdb_init_set_init_data(info, Box::into_raw(execution).cast(), Some(drop_box::<Mutex<Execution>>));
    }
}

unsafe extern "C" fn run_table(info: ffi::duckdb_function_info, output: ffi::duckdb_data_chunk) {
    // SAFETY: DuckDB passes what bind, init and registration left with it.
    let (this, plan, execution) = unsafe {
        (
            &*ffi::duckdb_function_get_extra_info(info).cast::<Registered<TableFunction>>(),
            &*ffi::duckdb_function_get_bind_data(info).cast::<Plan>(),
            &*ffi::duckdb_function_get_init_data(info).cast::<Mutex<Execution>>(),
        )
    };
    let filled = guard(|| {
        let mut execution = execution.lock().map_err(|_| Error::Internal("an earlier call panicked".into()))?;
        if execution.rows.is_none() {
            execution.rows = Some((plan.run)()?.into_iter());
        }
        let rows = execution.rows.iter_mut().flatten();
        // SAFETY: the chunk has the columns that bind declared, each with room for a vector's worth of rows.
        unsafe { fill(output, &plan.columns, rows.take(ffi::duckdb_vector_size() as usize)) }
    });
    // SAFETY: both handles are valid.
    unsafe {
        match filled {
            Ok(count) => ffi::duckdb_data_chunk_set_size(output, count as u64),
            Err(error) => ffi::duckdb_function_set_error(info, message(this.function.name, &error).as_ptr()),
        }
    }
}

/// Writes rows into a chunk, and says how many.
///
/// # Safety
///
/// `output` has the given columns, and room for the rows.
unsafe fn fill(output: ffi::duckdb_data_chunk, columns: &Columns, rows: impl Iterator<Item = Row>) -> Result<usize> {
    let mut count = 0;
    for (number, row) in rows.enumerate() {
        for (i, ((_, kind), value)) in columns.iter().zip(&row).enumerate() {
            // SAFETY: by the caller's promise.
            unsafe { Column::new(ffi::duckdb_data_chunk_get_vector(output, i as u64)).write(number, kind, value)? };
        }
        count = number + 1;
    }
    Ok(count)
}

unsafe extern "C" fn bind_scalar(info: ffi::duckdb_bind_info) {
    // SAFETY: DuckDB passes the extra information of the function it binds.
    let this = unsafe { &*ffi::duckdb_scalar_function_bind_get_extra_info(info).cast::<Registered<ScalarFunction>>() };
    // SAFETY: `info` is valid, the context is ours; the caller is DuckDB's to copy and free.
    unsafe {
        let bound = guard(|| {
            let mut context = ptr::null_mut();
            ffi::duckdb_scalar_function_get_client_context(info, &mut context);
            caller(&this.engine, context)
        });
        match bound {
            Ok(caller) => {
                ffi::duckdb_scalar_function_set_bind_data(
                    info,
                    Box::into_raw(Box::new(caller)).cast(),
                    Some(drop_box::<Caller>),
                );
                ffi::duckdb_scalar_function_set_bind_data_copy(info, Some(copy_caller));
            }
            Err(error) => {
                ffi::duckdb_scalar_function_bind_set_error(info, message(this.function.name, &error).as_ptr());
            }
        }
    }
}

unsafe extern "C" fn copy_caller(data: *mut c_void) -> *mut c_void {
    // SAFETY: the data is the `Caller` that `bind_scalar` left.
    Box::into_raw(Box::new(unsafe { &*data.cast::<Caller>() }.clone())).cast()
}

unsafe extern "C" fn run_scalar(
    info: ffi::duckdb_function_info,
    input: ffi::duckdb_data_chunk,
    output: ffi::duckdb_vector,
) {
    // SAFETY: DuckDB passes what bind and registration left with it.
    let (this, caller) = unsafe {
        (
            &*ffi::duckdb_scalar_function_get_extra_info(info).cast::<Registered<ScalarFunction>>(),
            &*ffi::duckdb_scalar_function_get_bind_data(info).cast::<Caller>(),
        )
    };
    let function = this.function;
    let done = guard(|| {
        // SAFETY: the input has a flat vector for each parameter, the output room for as many rows.
        unsafe {
            let rows = ffi::duckdb_data_chunk_get_size(input) as usize;
            let vectors: Vec<_> =
                (0..function.parameters.len() as u64).map(|i| ffi::duckdb_data_chunk_get_vector(input, i)).collect();
            let row = |row| {
                vectors.iter().zip(function.parameters).map(|(&vector, kind)| read_row(vector, kind, row)).collect()
            };
            let rows: Vec<Row> = (0..rows).map(row).collect();
            for (row, value) in (function.run)(caller, &rows)?.iter().enumerate() {
                Column::new(output).write(row, &function.returns, value)?;
            }
        }
        Ok(())
    });
    if let Err(error) = done {
        // SAFETY: `info` is valid.
        unsafe { ffi::duckdb_scalar_function_set_error(info, message(function.name, &error).as_ptr()) };
    }
}

/// The version of the DuckDB that runs us.
pub fn library_version() -> String {
    // SAFETY: a static string of DuckDB's.
    unsafe { CStr::from_ptr(ffi::duckdb_library_version()) }.to_string_lossy().into_owned()
}

/// The C API version the binary asks for.
pub fn c_api_version() -> &'static str {
    C_API_VERSION.to_str().unwrap_or_default()
}
