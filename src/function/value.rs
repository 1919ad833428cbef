//! SQL values on their way in and out: the types functions are declared with, and the values they take and give.

use std::ffi::{CStr, CString, c_void};
use std::sync::LazyLock;

use duckdb::ffi;

use crate::error::{Error, Result};

/// The type of a parameter or a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Type {
    /// Any type: the function looks for itself.
    Any,
    Boolean,
    BigInt,
    Double,
    Varchar,
    Uuid,
    /// Microseconds since 1970, UTC.
    Timestamp,
    List(&'static Type),
    Struct(&'static [(&'static str, Type)]),
}

/// A value of one of the [`Type`]s.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Boolean(bool),
    BigInt(i64),
    Double(f64),
    Varchar(String),
    Uuid(uuid::Uuid),
    Timestamp(i64),
    List(Vec<Value>),
    Struct(Vec<(String, Value)>),
    /// Something that came in and that no function takes: the name of its type.
    Other(&'static str),
}

impl Value {
    /// What a message calls it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Boolean(_) => "a BOOLEAN",
            Self::BigInt(_) => "an integer",
            Self::Double(_) => "a DOUBLE",
            Self::Varchar(_) => "a VARCHAR",
            Self::Uuid(_) => "a UUID",
            Self::Timestamp(_) => "a TIMESTAMP",
            Self::List(_) => "a list",
            Self::Struct(_) => "a STRUCT",
            Self::Other(kind) => kind,
        }
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::BigInt(value)
    }
}
impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::BigInt(i64::try_from(value).unwrap_or(i64::MAX))
    }
}
impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Double(value)
    }
}
impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Varchar(value)
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Varchar(value.to_owned())
    }
}
impl From<uuid::Uuid> for Value {
    fn from(value: uuid::Uuid) -> Self {
        Self::Uuid(value)
    }
}

/// A logical type that is destroyed when it goes out of scope.
pub(super) struct LogicalType(pub ffi::duckdb_logical_type);

impl Drop for LogicalType {
    fn drop(&mut self) {
        // SAFETY: we own the handle and nobody uses it after this.
        unsafe { ffi::duckdb_destroy_logical_type(&mut self.0) }
    }
}

impl Type {
    pub(super) fn logical(&self) -> LogicalType {
        let plain = |id| LogicalType(unsafe { ffi::duckdb_create_logical_type(id) });
        match self {
            Self::Any => plain(ffi::DUCKDB_TYPE_DUCKDB_TYPE_ANY),
            Self::Boolean => plain(ffi::DUCKDB_TYPE_DUCKDB_TYPE_BOOLEAN),
            Self::BigInt => plain(ffi::DUCKDB_TYPE_DUCKDB_TYPE_BIGINT),
            Self::Double => plain(ffi::DUCKDB_TYPE_DUCKDB_TYPE_DOUBLE),
            Self::Varchar => plain(ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR),
            Self::Uuid => plain(ffi::DUCKDB_TYPE_DUCKDB_TYPE_UUID),
            Self::Timestamp => plain(ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP),
            // SAFETY: the child is a valid type; DuckDB copies it.
            Self::List(child) => LogicalType(unsafe { ffi::duckdb_create_list_type(child.logical().0) }),
            Self::Struct(fields) => {
                let types: Vec<LogicalType> = fields.iter().map(|(_, kind)| kind.logical()).collect();
                let mut handles: Vec<_> = types.iter().map(|kind| kind.0).collect();
                let names: Vec<CString> = fields.iter().map(|(name, _)| c_string(name)).collect();
                let mut names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
                // SAFETY: both arrays hold `fields.len()` valid entries, which DuckDB copies.
                LogicalType(unsafe {
                    ffi::duckdb_create_struct_type(handles.as_mut_ptr(), names.as_mut_ptr(), fields.len() as u64)
                })
            }
        }
    }
}

/// A C string; what follows a NUL character is left off, which only our own constants and messages can come to.
pub(super) fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}

/// A value that DuckDB handed over, destroyed when it goes out of scope.
struct Handle(ffi::duckdb_value);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: we own the handle and nobody uses it after this.
        unsafe { ffi::duckdb_destroy_value(&mut self.0) }
    }
}

/// Reads a value and destroys it. `None` when the handle is null: no such argument was given.
///
/// # Safety
///
/// `value` is null or a value that the caller owns.
pub(super) unsafe fn take(value: ffi::duckdb_value) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    let handle = Handle(value);
    // SAFETY: by the caller's promise.
    Some(unsafe { read(handle.0) })
}

/// # Safety
///
/// `value` is a valid value.
unsafe fn read(value: ffi::duckdb_value) -> Value {
    // SAFETY: `value` is valid, its type handle lives as long as it does, and each getter is used for its own type. Children
    // are owned and destroyed by `take`.
    unsafe {
        if ffi::duckdb_is_null_value(value) {
            return Value::Null;
        }
        let kind = ffi::duckdb_get_value_type(value);
        match ffi::duckdb_get_type_id(kind) {
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_BOOLEAN => Value::Boolean(ffi::duckdb_get_bool(value)),
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_TINYINT
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_SMALLINT
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_INTEGER
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_BIGINT
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_UTINYINT
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_USMALLINT
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_UINTEGER => Value::BigInt(ffi::duckdb_get_int64(value)),
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_FLOAT
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_DOUBLE
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_DECIMAL => Value::Double(ffi::duckdb_get_double(value)),
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR if cut_short(value) => WITH_NUL,
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_VARCHAR => Value::Varchar(read_text(value)),
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_UUID => {
                uuid::Uuid::parse_str(&read_text(value)).map_or(Value::Other("a broken UUID"), Value::Uuid)
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_DATE
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_TZ
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_S
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_MS
            | ffi::DUCKDB_TYPE_DUCKDB_TYPE_TIMESTAMP_NS => Value::Timestamp(ffi::duckdb_get_timestamp(value).micros),
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_LIST => {
                let children = (0..ffi::duckdb_get_list_size(value)).map(|i| ffi::duckdb_get_list_child(value, i));
                Value::List(children.map(|child| take(child).unwrap_or(Value::Null)).collect())
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_STRUCT => {
                let fields = (0..ffi::duckdb_struct_type_child_count(kind)).map(|i| {
                    let name = owned_text(ffi::duckdb_struct_type_child_name(kind, i));
                    (name, take(ffi::duckdb_get_struct_child(value, i)).unwrap_or(Value::Null))
                });
                Value::Struct(fields.collect())
            }
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_BLOB => Value::Other("a BLOB"),
            ffi::DUCKDB_TYPE_DUCKDB_TYPE_MAP => Value::Other("a MAP"),
            _ => Value::Other("of another type"),
        }
    }
}

/// A text no function takes: the C API would hand over only what stands before the NUL.
const WITH_NUL: Value = Value::Other("a text with a NUL character in it");

/// Whether a VARCHAR is longer than the C string it can be read as.
///
/// The API gives no length. But the text of a list with a mark behind the value ends with the mark, unless a NUL in the
/// value ends the C string before it. Nobody can put the mark in a text of his own: it is drawn anew by every process.
///
/// # Safety
///
/// `value` is a valid VARCHAR, not NULL.
unsafe fn cut_short(value: ffi::duckdb_value) -> bool {
    static MARK: LazyLock<String> = LazyLock::new(|| uuid::Uuid::new_v4().simple().to_string());
    // SAFETY: the list copies its two values; mark and list are destroyed here.
    unsafe {
        let mark = Handle(ffi::duckdb_create_varchar_length(MARK.as_ptr().cast(), MARK.len() as u64));
        let mut values = [value, mark.0];
        let list = Handle(ffi::duckdb_create_list_value(Type::Varchar.logical().0, values.as_mut_ptr(), 2));
        !read_text(list.0).ends_with(&format!("{}]", *MARK))
    }
}

/// # Safety
///
/// `value` is valid and not NULL.
unsafe fn read_text(value: ffi::duckdb_value) -> String {
    // SAFETY: the getter returns a fresh C string.
    unsafe { owned_text(ffi::duckdb_get_varchar(value)) }
}

/// Copies a C string that DuckDB allocated for us, and frees it.
///
/// # Safety
///
/// `text` is null or was allocated by `duckdb_malloc` for the caller.
pub(super) unsafe fn owned_text(text: *mut std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the caller's promise.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        ffi::duckdb_free(text.cast::<c_void>());
        copy
    }
}

/// A column of a data chunk being filled.
#[derive(Clone, Copy)]
pub(super) struct Column(ffi::duckdb_vector);

impl Column {
    /// # Safety
    ///
    /// `vector` is a writable vector with the type of the values written to it, valid while the column is used.
    pub unsafe fn new(vector: ffi::duckdb_vector) -> Self {
        Self(vector)
    }

    /// Writes `value` in row `row`.
    ///
    /// # Safety
    ///
    /// The vector has room for `row`, and `kind` is its type.
    pub unsafe fn write(self, row: usize, kind: &Type, value: &Value) -> Result<()> {
        // SAFETY: by the caller's promise, the data has the layout that `kind` has in DuckDB, and room for `row`.
        unsafe {
            match (kind, value) {
                (_, Value::Null) => self.write_null(row, kind),
                (Type::Boolean, Value::Boolean(x)) => *self.at(row) = *x,
                (Type::BigInt, Value::BigInt(x)) | (Type::Timestamp, Value::Timestamp(x)) => *self.at(row) = *x,
                (Type::Double, Value::Double(x)) => *self.at(row) = *x,
                // A hugeint, with the highest bit flipped so that it sorts as the text does.
                (Type::Uuid, Value::Uuid(x)) => *self.at(row) = x.as_u128() ^ (1 << 127),
                (Type::Varchar, Value::Varchar(x)) => {
                    ffi::duckdb_vector_assign_string_element_len(self.0, row as u64, x.as_ptr().cast(), x.len() as u64);
                }
                (Type::Struct(fields), Value::Struct(values)) => {
                    for (i, ((_, kind), (_, value))) in fields.iter().zip(values).enumerate() {
                        Self(ffi::duckdb_struct_vector_get_child(self.0, i as u64)).write(row, kind, value)?;
                    }
                }
                (Type::List(child), Value::List(values)) => {
                    let offset = ffi::duckdb_list_vector_get_size(self.0);
                    let end = offset + values.len() as u64;
                    if ffi::duckdb_list_vector_reserve(self.0, end) != ffi::DuckDBSuccess
                        || ffi::duckdb_list_vector_set_size(self.0, end) != ffi::DuckDBSuccess
                    {
                        return Err(Error::Internal("a list could not grow".into()));
                    }
                    *self.at(row) = ffi::duckdb_list_entry { offset, length: values.len() as u64 };
                    let elements = Self(ffi::duckdb_list_vector_get_child(self.0));
                    for (i, value) in values.iter().enumerate() {
                        elements.write(offset as usize + i, child, value)?;
                    }
                }
                (kind, value) => return Err(Error::Internal(format!("{} in a column of type {kind:?}", value.kind()))),
            }
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As [`Column::write`].
    unsafe fn write_null(self, row: usize, kind: &Type) {
        // SAFETY: the validity mask is made writable, and so covers every row the vector has room for.
        unsafe {
            ffi::duckdb_vector_ensure_validity_writable(self.0);
            ffi::duckdb_validity_set_row_invalid(ffi::duckdb_vector_get_validity(self.0), row as u64);
            // Of a NULL struct, DuckDB expects the fields to be NULL too.
            if let Type::Struct(fields) = kind {
                for (i, (_, kind)) in fields.iter().enumerate() {
                    Self(ffi::duckdb_struct_vector_get_child(self.0, i as u64)).write_null(row, kind);
                }
            }
            if let Type::List(_) = kind {
                *self.at(row) = ffi::duckdb_list_entry { offset: 0, length: 0 };
            }
        }
    }

    /// # Safety
    ///
    /// The vector holds values of `T` and has room for `row`; the pointer is good while the vector is.
    unsafe fn at<T>(self, row: usize) -> *mut T {
        // SAFETY: by the caller's promise.
        unsafe { ffi::duckdb_vector_get_data(self.0).cast::<T>().add(row) }
    }
}

/// Reads row `row` of an input vector whose type is `kind`.
///
/// # Safety
///
/// `vector` is a flat vector of type `kind` with at least `row + 1` rows.
pub(super) unsafe fn read_row(vector: ffi::duckdb_vector, kind: &Type, row: usize) -> Value {
    // SAFETY: by the caller's promise; a missing validity mask means that every row is valid.
    unsafe {
        let validity = ffi::duckdb_vector_get_validity(vector);
        if !validity.is_null() && !ffi::duckdb_validity_row_is_valid(validity, row as u64) {
            return Value::Null;
        }
        let data = ffi::duckdb_vector_get_data(vector);
        match kind {
            Type::BigInt => Value::BigInt(*data.cast::<i64>().add(row)),
            Type::Varchar => {
                let text = data.cast::<ffi::duckdb_string_t>().add(row);
                let bytes = std::slice::from_raw_parts(
                    ffi::duckdb_string_t_data(text).cast::<u8>(),
                    ffi::duckdb_string_t_length(*text) as usize,
                );
                match bytes.contains(&0) {
                    true => WITH_NUL,
                    false => Value::Varchar(String::from_utf8_lossy(bytes).into_owned()),
                }
            }
            _ => Value::Other("of another type"),
        }
    }
}
