//! `forebay find`: the paths below directories, by name and type.

use super::session::{Session, base_name};
use super::shown::{kind_word, printable};
use super::walk::{Node, Visitor, walk};
use crate::fail::Fail;
use crate::file_args::Find;
use crate::output::{json, write};
use forebay_client::controls::Pattern;
use forebay_posix::Errno;
use serde_json::{Value, json as value};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Text that is printed at once. Bytes.
const BATCH: usize = 64 << 10;

pub fn find(name: &str, a: &Find) -> Result<u8, Fail> {
    let pattern = a.name.as_deref().map(pattern).transpose()?;
    let session = Session::open(name)?;
    let mut finder = Finder {
        session: &session,
        options: a,
        pattern,
        text: Vec::new(),
        found: Vec::new(),
        printed: Ok(()),
    };
    let root = [OsString::from("/")];
    let wanted = if a.paths.is_empty() {
        &root[..]
    } else {
        &a.paths[..]
    };
    for written in wanted {
        let shown = written.as_bytes();
        match Node::start(&session.fs, shown, session.path(written), false) {
            Err(e) => session.complain_errno(shown, "can't be searched", e),
            Ok(node) => walk(&session.fs, node, &mut finder),
        }
    }
    let Finder {
        text,
        found,
        printed,
        ..
    } = finder;
    printed?;
    match a.json {
        true => json(&found)?,
        false => write(&text)?,
    }
    Ok(session.end())
}

/// The pattern of one name.
fn pattern(glob: &str) -> Result<Pattern, Fail> {
    let bad = |what: &str| Fail::usage(format!("--name '{glob}': {what}"));
    if glob.is_empty() || glob.contains('/') {
        return Err(bad("a name has at least one character, and no /"));
    }
    Pattern::parse(&format!("/{glob}")).map_err(|e| bad(&e.message))
}

struct Finder<'a> {
    session: &'a Session,
    options: &'a Find,
    pattern: Option<Pattern>,
    text: Vec<u8>,
    found: Vec<Value>,
    /// The first error of the output ends the search.
    printed: Result<(), Fail>,
}

impl Finder<'_> {
    fn look(&mut self, node: &Node) {
        let types = &self.options.types;
        if !types.is_empty() && !types.iter().any(|t| t.bits() == node.kind) {
            return;
        }
        let name = match base_name(&node.name) {
            b"" => b"/",
            name => name,
        };
        if let Some(p) = &self.pattern
            && !p.matches(p.below(p.root(), name))
        {
            return;
        }
        if self.options.json {
            let path = String::from_utf8_lossy(&node.shown);
            let found = value!({ "path": path, "type": kind_word(node.kind) });
            return self.found.push(found);
        }
        match self.options.print0 {
            true => self.text.extend([&node.shown[..], b"\0"].concat()),
            false => self
                .text
                .extend([&printable(&node.shown)[..], b"\n"].concat()),
        }
        if self.text.len() > BATCH && self.printed.is_ok() {
            self.printed = write(&self.text);
            self.text.clear();
        }
    }
}

impl Visitor for Finder<'_> {
    fn enter(&mut self, node: &Node) -> bool {
        self.look(node);
        self.printed.is_ok() && self.options.depth.is_none_or(|most| node.depth < most)
    }

    fn leave(&mut self, _: &Node) {}

    fn file(&mut self, node: &Node) {
        self.look(node);
    }

    fn unlisted(&mut self, directory: &Node, e: Errno) {
        self.session
            .complain_errno(&directory.shown, "can't be listed", e);
    }
}
