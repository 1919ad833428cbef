//! The one place that leans on how DuckDB lays out its memory: a way to connect to the instance that runs us.
//!
//! An extension is handed its database once, while it is loaded, and that handle dies when loading ends. Keeping a
//! connection instead is worse: a connection owns the instance, so the file would stay locked after the user closed it,
//! and reopening it in the same process would hang. What is needed is a handle that names the instance without owning it.
//!
//! # Safety argument
//!
//! `duckdb_database` points to a wrapper whose first field is a `shared_ptr<DuckDB>`, and the first field of `DuckDB` is
//! its `shared_ptr<DatabaseInstance>`. A shared pointer is two words: the object, and the control block that counts owners.
//! [`Instance`] keeps a private copy of the two words of the inner pointer, taken without counting itself as an owner, and a
//! private wrapper whose outer pointer leads to that copy and has no control block, so that copying it counts nothing.
//! `duckdb_connect` on that wrapper reads the instance through both and builds an ordinary connection, which owns the
//! instance for as long as the connection lives.
//!
//! That is sound as long as the instance lives when `connect` is called, which holds because (1) an `Instance` is reachable
//! only from the functions registered with that very instance, and a function can only run inside a query of a living
//! connection to it; (2) no thread of ours outlives a call with an `Instance` in its hands; (3) every connection made here is
//! dropped before the call that made it returns. It leans on the layout of three fields, so `SUPPORTED` lists the versions
//! where the tests have shown it to hold, and loading into any other is refused.

use std::ffi::{CStr, CString, c_void};
use std::ptr;

use duckdb::{Connection, ffi};

use crate::error::{Error, Result};

/// Versions of DuckDB whose layout the tests have verified. A trailing `.` stands for every patch release.
const SUPPORTED: [&str; 3] = ["v1.5.5", "v1.5.6", "v2.0."];

/// `None` when this version of DuckDB is known to work, else why it is refused.
pub fn refusal(version: &str) -> Option<String> {
    let known =
        SUPPORTED.iter().any(|entry| if entry.ends_with('.') { version.starts_with(entry) } else { version == *entry });
    let list =
        SUPPORTED.map(|entry| if entry.ends_with('.') { format!("{entry}x") } else { entry.to_owned() }).join(", ");
    (!known).then(|| format!("lethe has not been verified with DuckDB {version}; supported: {list}"))
}

/// DuckDB's `shared_ptr`: an object and its control block.
#[repr(C)]
#[derive(Clone, Copy)]
struct SharedPointer {
    object: *const c_void,
    control: *const c_void,
}

/// Names a database instance without owning it.
pub struct Instance {
    /// Stands where a `DuckDB` would: its first field names the instance. Boxed, because `wrapper` points to it.
    _duckdb: Box<SharedPointer>,
    /// Stands where the wrapper behind a `duckdb_database` would: its first field leads to `_duckdb`.
    wrapper: Box<SharedPointer>,
}

// SAFETY: the pointers are only read, and the objects they name are DuckDB's own, which are built to be shared by threads.
unsafe impl Send for Instance {}
unsafe impl Sync for Instance {}

impl Instance {
    /// Names the instance behind `database`.
    ///
    /// # Safety
    ///
    /// `database` is a valid handle of a DuckDB whose version [`refusal`] accepts, and the result is used only while the
    /// instance lives (see the argument above).
    pub unsafe fn borrow(database: ffi::duckdb_database) -> Option<Self> {
        if database.is_null() {
            return None;
        }
        // SAFETY: by the layout above, the handle points to a shared pointer to a DuckDB.
        let outer = unsafe { *database.cast::<SharedPointer>() };
        if outer.object.is_null() {
            return None;
        }
        // SAFETY: likewise, a DuckDB begins with a shared pointer to its instance.
        let duckdb = Box::new(unsafe { *outer.object.cast::<SharedPointer>() });
        let wrapper = Box::new(SharedPointer { object: ptr::from_ref(&*duckdb).cast(), control: ptr::null() });
        Some(Self { _duckdb: duckdb, wrapper })
    }

    /// A new connection of our own: sees committed data, commits by itself, and must be dropped before the call returns.
    pub fn connect(&self) -> Result<Connection> {
        let handle = ptr::from_ref(&*self.wrapper).cast_mut().cast();
        // SAFETY: the instance lives, because a function registered with it is running; `open_from_raw` neither closes the
        // handle nor writes to it.
        Ok(unsafe { Connection::open_from_raw(handle) }?)
    }

    /// How many statements DuckDB's parser finds in `sql`, or what it says is wrong with it. Nothing is executed.
    pub fn statements(&self, sql: &str) -> Result<std::result::Result<u64, String>> {
        let Ok(sql) = CString::new(sql) else { return Ok(Err("it holds a NUL character".to_owned())) };
        let mut connection = ptr::null_mut();
        let handle = ptr::from_ref(&*self.wrapper).cast_mut().cast();
        // SAFETY: as in `connect`; every handle made here is destroyed here, and the error text is copied before.
        unsafe {
            if ffi::duckdb_connect(handle, &mut connection) != ffi::DuckDBSuccess {
                ffi::duckdb_disconnect(&mut connection);
                return Err(Error::Internal("no connection to parse with".to_owned()));
            }
            let mut extracted = ptr::null_mut();
            let count = ffi::duckdb_extract_statements(connection, sql.as_ptr(), &mut extracted);
            let error = ffi::duckdb_extract_statements_error(extracted);
            let error = (!error.is_null()).then(|| CStr::from_ptr(error).to_string_lossy().into_owned());
            ffi::duckdb_destroy_extracted(&mut extracted);
            ffi::duckdb_disconnect(&mut connection);
            Ok(match error {
                Some(error) if count == 0 => Err(error),
                _ => Ok(count),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn only_versions_that_were_verified_are_accepted() {
        for version in ["v1.5.5", "v1.5.6", "v2.0.0", "v2.0.1", "v2.0.17"] {
            assert_eq!(refusal(version), None);
        }
        for version in ["v1.5.4", "v1.5.60", "v1.4.0", "v2.1.0", "v20.0.1", "2.0.1", ""] {
            assert!(refusal(version).is_some_and(|why| why.contains("v2.0.x")), "{version}");
        }
    }
}
