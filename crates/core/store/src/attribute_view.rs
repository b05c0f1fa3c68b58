//! The view by attributes: directories under `/.by` that list files by their attributes.
//!
//! ```text
//! /.by/                       the keys of user attributes that occur in the pool
//! /.by/KEY/                   the values of this key
//! /.by/KEY=VALUE/             links to the files and directories with this attribute
//! /.by/KEY=VALUE/KEY=VALUE/   to those with both attributes; KEY/VALUE means KEY=VALUE
//! ```
//!
//! The view stores only the paths of its directories that a program has looked up: 'W' records, on
//! the node of the look-up. Such a record leads from a directory's id to the directory's path,
//! which names the attributes of the listed files. Whether a directory exists, and what it
//! contains, is read from the index each time ([`crate::index`]). Links are relative, so a link
//! leads to the same file wherever the pool is mounted. A link has the file's name. Where several
//! links would have the same name, `~` and the object's number follow it. Any link can also be
//! found by its numbered name.

use crate::record::{Word, hash_of};
use crate::views::Index;
use crate::{NAME_MAX, ObjectId};
use forebay_placement::{BY, MAX_DEPTH};
use rustix::io::{Errno, Result};

/// The name of the view's root in the pool's root directory.
pub const NAME: &[u8] = b".by";
/// A directory of the view.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// The path from the view's root on, without a slash at either end.
    pub path: Vec<u8>,
    pub depth: usize,
    /// The pairs of key and value that all listed objects have.
    pub words: Vec<Word>,
    /// The key at the end of the path. The next component will be a value of this key.
    pub key: Option<Vec<u8>>,
}

/// Whether a byte must be escaped in a name of the view.
fn is_escaped(byte: u8, in_key: bool) -> bool {
    matches!(byte, b'/' | b'%' | 0) || in_key && byte == b'='
}

fn escaped(bytes: &[u8], in_key: bool) -> Vec<u8> {
    let dots = matches!(bytes, b"." | b"..");
    let mut text = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        if dots || is_escaped(byte, in_key) {
            text.extend_from_slice(format!("%{byte:02X}").as_bytes())
        } else {
            text.push(byte)
        }
    }
    text
}

fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    Some(bytes)
}

/// A key as it is written in a path.
pub(crate) fn written_key(key: &[u8]) -> Vec<u8> {
    escaped(key, true)
}

/// The value of an attribute as it is written in a path: by its hash, if it is too long for a name.
pub(crate) fn written_value(value: &[u8], word: Word) -> Vec<u8> {
    let text = match value {
        b"" => b"%".to_vec(),
        value if value.len() <= NAME_MAX => escaped(value, false),
        _ => Vec::new(),
    };
    match text.len() {
        1..=NAME_MAX => text,
        _ => format!("%#{:016x}", word.value).into_bytes(),
    }
}

/// Returns the key and value that two names in a path stand for; None if `value` isn't validly
/// escaped.
fn word(key: &[u8], value: &[u8]) -> Option<Word> {
    if let Some(hash) = value.strip_prefix(b"%#") {
        let digits = std::str::from_utf8(hash).ok().filter(|d| d.len() == 16)?;
        let value = u64::from_str_radix(digits, 16).ok()?;
        let key = hash_of(key);
        return Some(Word { key, value });
    }
    let value = match value {
        b"%" => Vec::new(),
        text => unescaped(text)?,
    };
    Some(Word::new(key, &value))
}

impl View {
    /// The directory `name` in this one, if the name is valid.
    pub fn inner(&self, name: &[u8]) -> Option<View> {
        let mut inner = self.clone();
        if !inner.path.is_empty() {
            inner.path.push(b'/');
        }
        inner.path.extend_from_slice(name);
        inner.depth += 1;
        let equals = name.iter().position(|&b| b == b'=');
        match (inner.key.take(), equals) {
            (Some(key), _) => inner.words.push(word(&key, name)?),
            (None, Some(at)) => {
                let key = unescaped(&name[..at]).filter(|key| !key.is_empty())?;
                inner.words.push(word(&key, &name[at + 1..])?);
            }
            (None, None) => inner.key = Some(unescaped(name).filter(|key| !key.is_empty())?),
        }
        (inner.depth <= MAX_DEPTH).then_some(inner)
    }

    /// The directory of the view with this path; None if the path is invalid.
    pub fn of_path(path: &[u8]) -> Option<View> {
        let mut names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        names.try_fold(View::default(), |view, name| view.inner(name))
    }

    pub fn id(&self) -> ObjectId {
        if self.path.is_empty() {
            BY
        } else {
            ObjectId::view_dir(hash_of(&self.path))
        }
    }

    /// The path of the parent directory, and the name of this directory in it.
    pub fn split(&self) -> (&[u8], &[u8]) {
        match self.path.iter().rposition(|&b| b == b'/') {
            Some(at) => (&self.path[..at], &self.path[at + 1..]),
            None => (b"", &self.path),
        }
    }

    pub fn lists_files(&self) -> bool {
        !self.words.is_empty() && self.key.is_none()
    }
}

/// Whether `path` leads to a directory of the view that has the id `id`.
pub(crate) fn is_path_of(id: ObjectId, path: &[u8]) -> bool {
    View::of_path(path).is_some_and(|view| view.id() == id)
}

/// The name of a link where several links would have the same name: `NAME~NUMBER`.
pub fn numbered(name: &[u8], id: ObjectId) -> Vec<u8> {
    let number = format!("~{}", id.0);
    let room = NAME_MAX - number.len();
    let mut text = name[..name.len().min(room)].to_vec();
    text.extend_from_slice(number.as_bytes());
    text
}

/// The object whose number follows `~` in a link's name.
pub fn number_in(name: &[u8]) -> Option<ObjectId> {
    let at = name.iter().rposition(|&b| b == b'~')?;
    let digits = std::str::from_utf8(&name[at + 1..]).ok()?;
    digits.parse().ok().map(ObjectId).filter(|id| !id.is_view())
}

impl<'s> Index<'s> {
    /// Whether the entry is the view's root (`/.by`) or lies in the view.
    pub fn is_in_view(parent: ObjectId, name: &[u8]) -> bool {
        parent.is_view() || parent == ObjectId::ROOT && name == NAME
    }

    /// # Errors
    /// EROFS if the entry is the view's root or lies in the view: names there can't be made or
    /// removed.
    pub fn refuse_view(&self, parent: ObjectId, name: &[u8]) -> Result<()> {
        if Index::is_in_view(parent, name) {
            Err(Errno::ROFS)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_a_path_is_read_back() {
        let long = vec![b'x'; 300];
        let values: [&[u8]; 9] = [
            b"mcse", b"", b".", b"..", b"a/b", b"100%", b"x=y", b"\0\xff", &long,
        ];
        for value in values {
            let meant = Word::new(b"k", value);
            let text = written_value(value, meant);
            assert!((1..=NAME_MAX).contains(&text.len()));
            assert!(!text.contains(&b'/') && text != b"." && text != b"..");
            assert_eq!(word(b"k", &text), Some(meant), "{value:?}");
            // Both spellings of the path.
            let by_name = View::of_path(&[b"k=", &text[..]].concat()).unwrap();
            let by_path = View::of_path(&[b"k/", &text[..]].concat()).unwrap();
            assert_eq!(by_name.words, [meant]);
            assert_eq!(by_path.words, [meant]);
        }
        for key in [&b"project"[..], b"a=b", b"a/b", b".", b"%"] {
            let text = written_key(key);
            assert_eq!(unescaped(&text).unwrap(), key);
            assert!(!text.contains(&b'=') && !text.contains(&b'/'));
        }
        for none in [&b"%"[..], b"%2", b"%zz=1", b"=1", b"k=%1", b"k=%#12"] {
            assert_eq!(View::of_path(none), None, "{none:?}");
        }
    }

    #[test]
    fn directories_lie_seven_deep_at_most() {
        let path = |n| vec!["a=1"; n].join("/");
        assert!(View::of_path(path(7).as_bytes()).is_some());
        assert!(View::of_path(path(8).as_bytes()).is_none());
        let view = View::of_path(b"a=1/b/2").unwrap();
        assert_eq!(view.split(), (&b"a=1/b"[..], &b"2"[..]));
        assert!(view.lists_files() && !View::of_path(b"a=1/b").unwrap().lists_files());
    }

    #[test]
    fn a_number_behind_a_name_is_found_again() {
        let id = ObjectId(1 << 40);
        for name in [&b"f"[..], b"f~12", &[b'n'; 255]] {
            let text = numbered(name, id);
            assert!(text.len() <= NAME_MAX);
            assert_eq!(number_in(&text), Some(id));
        }
        assert_eq!(number_in(b"f~x"), None);
        assert_eq!(number_in(b"f"), None);
    }
}
