//! The codec of messages between nodes and of some records: values as bytes.
//!
//! A message is a tuple of parts, encoded one after the other. Numbers are little-endian. A text
//! follows its length (4 bytes). An optional part follows a byte: 1, or 0 if the part is absent.
//! Any bytes can be decoded: the result is None for bytes that aren't a message.

use crate::ObjectId;
use crate::record::{Entry, Inode};

/// A type that can be part of a message.
pub trait Wire: Sized {
    /// The type of the decoded value: `Self`, or for a borrowed value the type that owns its bytes.
    type Owned;
    /// Appends the encoded value to `to`.
    fn put(&self, to: &mut Vec<u8>);
    /// Decodes a value from the front of `from` and removes its bytes there.
    fn take(from: &mut &[u8]) -> Option<Self>;
}

/// Encodes `parts`, usually a tuple, as a message.
pub fn encode(parts: &impl Wire) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    parts.put(&mut bytes);
    bytes
}

/// Decodes a message; None if the bytes aren't one, or if more bytes follow it.
pub fn decode<T: Wire>(mut bytes: &[u8]) -> Option<T> {
    let parts = T::take(&mut bytes)?;
    bytes.is_empty().then_some(parts)
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            type Owned = $t;

            #[inline]
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn take(from: &mut &[u8]) -> Option<$t> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$t>::from_le_bytes(*bytes))
            }
        }
    )*};
}
numbers!(u8, u32, u64, u128, i64);

impl Wire for () {
    type Owned = ();

    #[inline]
    fn put(&self, _: &mut Vec<u8>) {}
    #[inline]
    fn take(_: &mut &[u8]) -> Option<()> {
        Some(())
    }
}

impl Wire for bool {
    type Owned = bool;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<bool> {
        match u8::take(from)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl Wire for Vec<u8> {
    type Owned = Vec<u8>;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        self.as_slice().put(to);
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Vec<u8>> {
        let length = u32::take(from)? as usize;
        let (bytes, rest) = from.split_at_checked(length)?;
        *from = rest;
        Some(bytes.to_vec())
    }
}

/// Encodes a borrowed value. Decoding returns a value that owns its bytes.
impl<T: Wire> Wire for &T {
    type Owned = T::Owned;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        T::put(self, to);
    }
    #[inline]
    fn take(_: &mut &[u8]) -> Option<Self> {
        None
    }
}

/// Encodes a borrowed text. Decoding returns a `Vec<u8>`.
impl Wire for &[u8] {
    type Owned = Vec<u8>;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u32).put(to);
        to.extend_from_slice(self);
    }
    #[inline]
    fn take(_: &mut &[u8]) -> Option<Self> {
        None
    }
}

impl<T: Wire> Wire for Option<T> {
    type Owned = Option<T::Owned>;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        if let Some(part) = self {
            part.put(to);
        }
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Option<T>> {
        if bool::take(from)? {
            T::take(from).map(Some)
        } else {
            Some(None)
        }
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    type Owned = Result<T::Owned, E::Owned>;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        self.is_err().put(to);
        match self {
            Ok(part) => part.put(to),
            Err(part) => part.put(to),
        }
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Result<T, E>> {
        if bool::take(from)? {
            E::take(from).map(Err)
        } else {
            T::take(from).map(Ok)
        }
    }
}

impl Wire for ObjectId {
    type Owned = ObjectId;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<ObjectId> {
        u64::take(from).map(ObjectId)
    }
}

impl Wire for Entry {
    type Owned = Entry;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.encode());
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Entry> {
        let (bytes, rest) = from.split_first_chunk::<9>()?;
        *from = rest;
        Entry::decode(bytes)
    }
}

/// Implements `Wire` for structures, whose fields are encoded in the order given.
#[macro_export]
macro_rules! fields {
    ($($t:ty { $($field:ident),+ })+) => {$(
        impl $crate::codec::Wire for $t {
            type Owned = $t;

            #[inline]
            fn put(&self, to: &mut Vec<u8>) {
                $($crate::codec::Wire::put(&self.$field, to);)+
            }
            #[inline]
            fn take(from: &mut &[u8]) -> Option<$t> {
                Some(Self { $($field: $crate::codec::Wire::take(from)?),+ })
            }
        }
    )+};
}
pub use fields;

/// An inode with the tail of its record.
pub struct Record(pub Inode, pub Vec<u8>);

impl Wire for Record {
    type Owned = Record;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        self.0.encode(&self.1).as_slice().put(to);
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<Record> {
        let bytes: Vec<u8> = Wire::take(from)?;
        Inode::decode(&bytes).map(|(inode, tail)| Record(inode, tail.to_vec()))
    }
}

/// Encoded as the number of items (4 bytes), then the items.
impl<T: Wire> Wire for List<T> {
    type Owned = List<T::Owned>;

    #[inline]
    fn put(&self, to: &mut Vec<u8>) {
        (self.0.len() as u32).put(to);
        self.0.iter().for_each(|part| part.put(to));
    }
    #[inline]
    fn take(from: &mut &[u8]) -> Option<List<T>> {
        let count = u32::take(from)? as usize;
        // Reserves at most one item per byte left, so that a peer can't make this node reserve much
        // memory.
        let mut list = Vec::with_capacity(count.min(from.len()));
        for _ in 0..count {
            list.push(T::take(from)?);
        }
        Some(List(list))
    }
}

/// A list of values in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub Vec<T>);

macro_rules! tuples {
    ($($($name:ident)+;)*) => {$(
        impl<$($name: Wire),+> Wire for ($($name,)+) {
            type Owned = ($($name::Owned,)+);

            #[inline]
            fn put(&self, to: &mut Vec<u8>) {
                #[allow(non_snake_case, reason = "each value is named like its type")]
                let ($($name,)+) = self;
                $($name.put(to);)+
            }
            #[inline]
            fn take(from: &mut &[u8]) -> Option<Self> {
                Some(($($name::take(from)?,)+))
            }
        }
    )*};
}
tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
}
