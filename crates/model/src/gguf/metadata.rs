//! What a weight file says of itself: a typed value a key.

use std::collections::BTreeMap;

use super::{Cursor, Stop};

/// The metadata: a value a key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(BTreeMap<String, Value>);

impl Metadata {
    /// The value of `key` as a `T`: `u32`, `u64` (of any integer that fits), `f32`, `bool`, `&str`,
    /// `&StringArray` or `Vec<i32>`. `None` if the file has no such key, an error if it has another type.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(value) => Ok(Some(value)),
            None => Err(MetadataError::Type { key: key.to_owned(), wanted: T::WANTED, found: value.describe() }),
        }
    }

    /// As [`get`](Self::get), for a key that the file must have.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetadataError> {
        self.get(key)?.ok_or_else(|| MetadataError::Missing { key: key.to_owned(), wanted: T::WANTED })
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn insert(&mut self, key: String, value: Value) {
        self.0.insert(key, value);
    }

    /// All pairs, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

/// Why a metadata value could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error("the file has no metadata `{key}` ({wanted}): convert the model again, or use another file")]
    Missing { key: String, wanted: &'static str },
    #[error("metadata `{key}` is {found} where {wanted} is needed: convert the model again, or use another file")]
    Type { key: String, wanted: &'static str, found: String },
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Numbers(NumberArray),
    Strings(StringArray),
}

impl Value {
    fn describe(&self) -> String {
        match self {
            Self::Unsigned(value) => format!("the integer {value}"),
            Self::Signed(value) => format!("the integer {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::String(_) => "a string".to_owned(),
            Self::Numbers(array) => format!("an array of {} {}", array.len(), array.scalar.name()),
            Self::Strings(array) => format!("an array of {} strings", array.len()),
        }
    }
}

/// A type that [`Metadata::get`] can give.
pub trait FromValue<'a>: Sized {
    /// What it is, for messages.
    const WANTED: &'static str;
    fn from_value(value: &'a Value) -> Option<Self>;
}

impl FromValue<'_> for u64 {
    const WANTED: &'static str = "an integer from 0 to 2^64-1";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Unsigned(value) => Some(*value),
            Value::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }
}

impl FromValue<'_> for u32 {
    const WANTED: &'static str = "an integer from 0 to 2^32-1";
    fn from_value(value: &Value) -> Option<Self> {
        u64::from_value(value).and_then(|value| u32::try_from(value).ok())
    }
}

impl FromValue<'_> for f32 {
    const WANTED: &'static str = "a number";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Float(value) => Some(*value as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const WANTED: &'static str = "a boolean";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANTED: &'static str = "a string";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(value) => Some(value),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a StringArray {
    const WANTED: &'static str = "an array of strings";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Strings(value) => Some(value),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<i32> {
    const WANTED: &'static str = "an array of 32-bit integers";
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Numbers(array) => array.to_i32(),
            _ => None,
        }
    }
}

/// Many strings in one allocation: a vocabulary takes its own bytes and four more a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    /// Where each string ends in `text`. A header, and so `text`, is far smaller than 4 GiB.
    ends: Vec<u32>,
}

impl StringArray {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        self.text.get(start..end)
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Itself, without the room it had to grow.
    pub(super) fn shrunk(mut self) -> Self {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
        self
    }

    pub(super) fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len() as u32);
    }
}

/// An array of numbers, as the file has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberArray {
    scalar: Scalar,
    bytes: Vec<u8>,
}

impl NumberArray {
    pub(super) fn new(scalar: Scalar) -> Self {
        Self { scalar, bytes: Vec::new() }
    }

    /// Itself, without the room it had to grow.
    pub(super) fn shrunk(mut self) -> Self {
        self.bytes.shrink_to_fit();
        self
    }

    /// Reads the next element.
    pub(super) fn push(&mut self, cursor: &mut Cursor) -> Result<(), Stop> {
        let start = cursor.at;
        self.scalar.read(cursor)?;
        self.bytes.extend_from_slice(&cursor.bytes[start..cursor.at]);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.bytes.len() / self.scalar.bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn to_i32(&self) -> Option<Vec<i32>> {
        let words = self.bytes.as_chunks::<4>().0.iter();
        match self.scalar {
            Scalar::I32 => Some(words.map(|word| i32::from_le_bytes(*word)).collect()),
            Scalar::U32 => words.map(|word| i32::try_from(u32::from_le_bytes(*word)).ok()).collect(),
            _ => None,
        }
    }
}

/// The number types of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl Scalar {
    pub(super) fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    pub(super) fn read(self, cursor: &mut Cursor) -> Result<Value, Stop> {
        Ok(match self {
            Self::U8 => Value::Unsigned(u8::from_le_bytes(cursor.array()?).into()),
            Self::I8 => Value::Signed(i8::from_le_bytes(cursor.array()?).into()),
            Self::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
            Self::I16 => Value::Signed(i16::from_le_bytes(cursor.array()?).into()),
            Self::U32 => Value::Unsigned(cursor.u32()?.into()),
            Self::I32 => Value::Signed(i32::from_le_bytes(cursor.array()?).into()),
            Self::F32 => Value::Float(f32::from_le_bytes(cursor.array()?).into()),
            Self::U64 => Value::Unsigned(cursor.u64()?),
            Self::I64 => Value::Signed(i64::from_le_bytes(cursor.array()?)),
            Self::F64 => Value::Float(f64::from_le_bytes(cursor.array()?)),
            Self::Bool => match cursor.array()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(cursor.bad_pair(format!("a boolean is {other}, neither 0 nor 1"))),
            },
        })
    }
}
