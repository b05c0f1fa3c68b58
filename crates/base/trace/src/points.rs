//! The table of all tracepoints: the only one, so that a point has the same number in all programs
//! of a build.
//!
//! A point whose name ends with `_ENTER` has a partner that ends with `_EXIT`; the work between
//! them is done by one thread. The template describes in words what happened. In the template,
//! `{field}` stands for a field, formatted according to its [`Kind`], and `{text}` for a name or
//! path.

/// How a field is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A decimal number.
    Number,
    /// An object of the pool: hexadecimal.
    Object,
    /// A count of bytes, or an offset.
    Bytes,
    /// The number of a node.
    Node,
    /// An errno, 0: none.
    Errno,
    /// The number of a system call.
    Call,
    /// The kind of a request between nodes.
    Request,
    /// Bits: hexadecimal.
    Bits,
    /// A length of time in ticks.
    Ticks,
}

/// A tracepoint.
#[derive(Debug)]
pub struct About {
    /// The point's name, by which users switch it on.
    pub name: &'static str,
    /// The crate that contains the point.
    pub place: &'static str,
    /// Sentence that describes what happened.
    pub template: &'static str,
    /// Names and kinds of the point's fields.
    pub fields: &'static [(&'static str, Kind)],
}

/// Maximum number of points, and so the length of [`crate::shared::Shared::on`].
pub const MAX_POINTS: usize = 4096;
/// Maximum number of fields of a point.
pub const MAX_FIELDS: usize = 4;

macro_rules! points {
    ($($place:literal { $($name:ident $template:literal ($($field:ident: $kind:ident),*);)* })*) => {
        /// A place in the code that can record an event.
        #[allow(
            non_camel_case_types,
            reason = "users type and read the names of points in capitals"
        )]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Point { $($(#[doc = $template] $name),*),* }

        /// All points. The number of a point is its index here.
        pub static POINTS: &[About] = &[$($(About {
            name: stringify!($name),
            place: $place,
            template: $template,
            fields: &[$((stringify!($field), Kind::$kind)),*],
        }),*),*];
    };
}

points! {
    "preload" {
        CALL_ENTER "a program's system call {call} begins, descriptor or first argument {first}"
            (call: Call, first: Number);
        CALL_EXIT "the call {call} ends: {result}; {outside} is 1 if it didn't concern the pool"
            (call: Call, result: Number, outside: Number);
    }
    "fuse" {
        FUSE_REQUEST_ENTER "the kernel's request {opcode} on node {inode} begins"
            (opcode: Number, inode: Number);
        FUSE_REQUEST_EXIT "the kernel's request {opcode} is answered" (opcode: Number);
    }
    "posix" {
        POSIX_OPEN_ENTER "open {text}, flags {flags}" (flags: Bits);
        POSIX_OPEN_EXIT "opened: {error}" (error: Errno);
        POSIX_OPENED "{text} in directory {directory} is file {file}, flags {flags}"
            (file: Object, directory: Object, flags: Bits);
        POSIX_DIRECTORY_MADE "{text} in directory {parent} is made, directory {directory}"
            (directory: Object, parent: Object);
        POSIX_RENAMED "object {object} is {text} in directory {directory} now"
            (object: Object, directory: Object);
        POSIX_WALK_ENTER "path {text} is resolved" ();
        POSIX_WALK_EXIT "path resolved: {error}" (error: Errno);
        POSIX_READ_ENTER "read {length} of file {file} at {offset}"
            (file: Object, offset: Bytes, length: Bytes);
        POSIX_READ_EXIT "read {length} of file {file}" (file: Object, length: Bytes);
        POSIX_WRITE_ENTER "write {length} to file {file} at {offset}"
            (file: Object, offset: Bytes, length: Bytes);
        POSIX_WRITE_EXIT "wrote {length} to file {file}" (file: Object, length: Bytes);
        POSIX_TRUNCATED "the size of file {file} is set to {size}" (file: Object, size: Bytes);
        POSIX_ALLOCATED "fallocate of {length} of file {file} at {offset}, mode {mode}"
            (file: Object, offset: Bytes, length: Bytes, mode: Bits);
        POSIX_MAPPED "file {file} is mapped; {changes} is 1 if it can be written through the mapping"
            (file: Object, changes: Number);
        POSIX_SYNC_ENTER "file {file} is made durable" (file: Object);
        POSIX_SYNC_EXIT "made durable: {error}" (error: Errno);
    }
    "cluster" {
        CLUSTER_LOOKUP_ENTER "look up {text} in directory {directory}" (directory: Object);
        CLUSTER_LOOKUP_EXIT "looked up: {error}" (error: Errno);
        CLUSTER_CREATE_ENTER "create {text} in directory {directory}" (directory: Object);
        CLUSTER_CREATE_EXIT "created: {error}" (error: Errno);
        CLUSTER_STAT_ENTER "attributes of file {file}" (file: Object);
        CLUSTER_STAT_EXIT "attributes: {error}" (error: Errno);
        CLUSTER_READ_ENTER "bytes of file {file} at {offset}, {length}"
            (file: Object, offset: Bytes, length: Bytes);
        CLUSTER_READ_EXIT "bytes read: {error}" (error: Errno);
        CLUSTER_WRITE_ENTER "bytes to file {file} at {offset}, {length}"
            (file: Object, offset: Bytes, length: Bytes);
        CLUSTER_WRITE_EXIT "bytes written: {error}" (error: Errno);
        CLUSTER_REMOVE_ENTER "remove {text} from directory {directory}" (directory: Object);
        CLUSTER_REMOVE_EXIT "removed: {error}" (error: Errno);
        CLUSTER_RENAME_ENTER "rename {text} in directory {directory}" (directory: Object);
        CLUSTER_RENAME_EXIT "renamed: {error}" (error: Errno);
        CLUSTER_ASK "node {node} is asked, request {kind}" (node: Node, kind: Request);
    }
    "client" {
        ASK_ENTER "request {kind} to node {node} with {length} is given to the daemon"
            (node: Node, kind: Request, length: Bytes);
        ASK_EXIT "the reply of node {node}: {error}" (node: Node, error: Errno);
    }
    "pool" {
        LINK_SEND "request {kind} is sent to node {node}" (node: Node, kind: Request);
        LINK_REPLY "node {node} has answered request {kind}: {error}"
            (node: Node, kind: Request, error: Errno);
        LINK_UP "there is a connection with node {node}" (node: Node);
        LINK_DOWN "node {node} can't be reached" (node: Node);
        SERVE_ENTER "request {kind} of node {node} is carried out" (node: Node, kind: Request);
        SERVE_EXIT "request {kind} of node {node} is answered: {error}"
            (node: Node, kind: Request, error: Errno);
        MAP_LEARNED "there is a map of the pool of epoch {epoch}" (epoch: Number);
    }
    "store" {
        STORE_LOOKUP_ENTER "entry {text} of directory {directory}" (directory: Object);
        STORE_LOOKUP_EXIT "entry found: {error}" (error: Errno);
        STORE_CREATE_ENTER "entry and inode of {text} in directory {directory} are made"
            (directory: Object);
        STORE_CREATE_EXIT "made: {error}" (error: Errno);
        STORE_REMOVE_ENTER "entry {text} of directory {directory} is removed" (directory: Object);
        STORE_REMOVE_EXIT "removed: {error}" (error: Errno);
        STORE_OPEN_ENTER "file {file} is opened" (file: Object);
        STORE_OPEN_EXIT "opened: {error}" (error: Errno);
        STORE_CLOSE "file {file} is closed" (file: Object);
        STORE_READ_ENTER "{length} of file {file} at {offset} are copied out of extents"
            (file: Object, offset: Bytes, length: Bytes);
        STORE_READ_EXIT "copied: {error}" (error: Errno);
        STORE_WRITE_ENTER "{length} to file {file} at {offset} are copied into extents"
            (file: Object, offset: Bytes, length: Bytes);
        STORE_WRITE_EXIT "copied: {error}" (error: Errno);
        FILE_LOCK_WAIT_ENTER "waits for a lock on file {file}" (file: Object);
        FILE_LOCK_WAIT_EXIT "no longer waits for the lock on file {file}" (file: Object);
        ATTACHED "this process uses the pool as its process {slot}" (slot: Number);
        REAP_ENTER "what ended processes held is released" ();
        REAP_EXIT "released: {error}" (error: Errno);
        SHARD_WAIT_ENTER "waits for shard {shard}" (shard: Number);
        SHARD_WAIT_EXIT "has shard {shard}" (shard: Number);
        TRANSACTION_BEGIN "a transaction of shard {shard} begins" (shard: Number);
        TRANSACTION_COMMIT_ENTER "the transaction is committed" ();
        TRANSACTION_COMMIT_EXIT "committed: {error}" (error: Errno);
    }
    "staging" {
        STAGE_FILE_ENTER "{text} is copied" ();
        STAGE_FILE_EXIT "copied" ();
    }
}

const _: () = {
    assert!(POINTS.len() <= MAX_POINTS);
    let mut i = 0;
    while i < POINTS.len() {
        assert!(POINTS[i].fields.len() <= MAX_FIELDS);
        i += 1;
    }
};

/// Returns a number that differs between different tables: processes of different builds must not
/// switch each other's points.
pub const fn table() -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < POINTS.len() {
        let name = POINTS[i].name.as_bytes();
        let mut j = 0;
        while j < name.len() {
            hash = (hash ^ name[j] as u64).wrapping_mul(0x0100_0000_01b3);
            j += 1;
        }
        hash = (hash ^ POINTS[i].fields.len() as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

/// Returns the number of the point with this name.
pub fn named(name: &str) -> Option<usize> {
    POINTS.iter().position(|p| p.name == name)
}

/// Errno of an operation's result, or 0. For `_EXIT` points.
pub fn outcome<T>(result: &Result<T, rustix::io::Errno>) -> u64 {
    match result {
        Ok(_) => 0,
        Err(e) => e.raw_os_error() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn points_are_named_once_in_pairs_and_say_all_fields() {
        let names: HashSet<&str> = POINTS.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), POINTS.len());
        for p in POINTS {
            if let Some(stem) = p.name.strip_suffix("_ENTER") {
                assert!(
                    names.contains(format!("{stem}_EXIT").as_str()),
                    "{}",
                    p.name
                );
            }
            if let Some(stem) = p.name.strip_suffix("_EXIT") {
                assert!(
                    names.contains(format!("{stem}_ENTER").as_str()),
                    "{}",
                    p.name
                );
            }
            for (field, _) in p.fields {
                assert!(
                    p.template.contains(&format!("{{{field}}}")),
                    "{}: {field}",
                    p.name
                );
            }
            let parts = p.template.matches('{').count();
            let text = usize::from(p.template.contains("{text}"));
            assert_eq!(parts, p.fields.len() + text, "{}", p.name);
        }
        assert_eq!(
            named("STORE_CREATE_ENTER"),
            Some(Point::STORE_CREATE_ENTER as usize)
        );
        assert_eq!(named("NOTHING"), None);
    }
}
