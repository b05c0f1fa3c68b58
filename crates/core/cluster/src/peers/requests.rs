//! The table of requests between nodes, and the code that is derived from it.
//!
//! Each request is declared once: number, name, the handler that carries it out, arguments and
//! reply, class, the effect of carrying it out a second time, whether it may be long, which objects
//! a fence checks ([`Fence`]), the bytes that travel with it ([`Body`]), and one line of
//! documentation. From the table come:
//! - the numbers in [`kind`], the types in [`arguments`] and [`replies`], and both in [`request`]:
//!   the requesting side can't send or expect other types;
//! - the properties of a request, which daemons look up ([`find`]), and
//!   `docs/reference/protocol.md`;
//! - a trait for each theme (`Lookups` and others) with a method for each request, its handler;
//!   `serve.rs` implements them;
//! - `dispatch`, which decodes the arguments, calls the handler and encodes its reply.
//!
//! Two requests with one number don't compile. Numbers are never used again for another request:
//! the next free number below 128 is 119.

use super::messages::{List, Record, Wire, decode, encode};
use forebay_store::controls::DeclareOutcome;
use forebay_store::index::find::{Place, Wanted};
use forebay_store::index::query::{Hit, Page};
use forebay_store::index::{Description, Match};
use forebay_store::locks::{InTheWay, Owner, Request, Waits};
use forebay_store::placements::{Chunk, Placed};
use forebay_store::record::{Entry, Mark, Word};
use forebay_store::stripe_units::{Granted, Holder};
use forebay_store::{Creator, ObjectId, RenameMode, SetAttr, Stub};
use rustix::io::Errno;
use std::marker::PhantomData;

/// The class of a request, which decides which threads carry it out. A request may wait for replies
/// to requests of lower classes only, so threads of several nodes never wait for each other in a
/// circle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Needs nothing but this node's store.
    Leaf,
    /// May send requests of the class `Leaf` to other nodes.
    Entry,
    /// May send requests of the classes `Leaf` and `Entry`.
    Composite,
    /// Changes directories: one at a time in the whole pool. May send requests of all other
    /// classes.
    Names,
    /// Copies or moves many bytes. May send requests of the class `Leaf`.
    Bulk,
}

/// The effect of carrying out a request a second time, when it isn't known whether it was carried
/// out before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// No effect, even if other changes came between: the request changes nothing, or finds its
    /// change already made.
    Harmless,
    /// No effect, unless other changes came between. So the reply is recorded in a file that
    /// outlives the daemon. If there is no record, the request is carried out again.
    Step,
    /// A repetition would undo later changes of others, so the reply is recorded. If there is no
    /// record, the request isn't repeated: the result is unknown (EIO).
    Once,
}

/// How long a request may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// Less than the request timeout.
    Brief,
    /// Possibly longer: the request writes to a disk, frees much room, copies, or waits for third
    /// nodes. A request whose reply has bytes ([`Body::Received`]) must be `Brief`.
    Long,
}

/// The objects for which a request is refused if the sender has lost its locks (`serve/fences.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// The request isn't about bytes or locks of a file.
    Free,
    /// The request is about bytes or locks of the object in its first 8 bytes, and changes nothing.
    Looks,
    /// As [`Fence::Looks`], and the request changes the object.
    Changes,
    /// The request is about the objects in its first and its second 8 bytes, and changes one of
    /// them.
    Both,
}

/// Bytes that are sent with the arguments or the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    None,
    /// With the request.
    Sent,
    /// With the reply.
    Received,
}

/// A request as the table declares it.
pub struct Declared {
    pub number: u16,
    pub name: &'static str,
    /// The arguments with their types. `posix/tests/requests.rs` checks them against the requests
    /// that nodes send.
    pub arguments_text: &'static str,
    /// The type of the reply.
    pub reply_text: &'static str,
    pub class: Class,
    pub repeat: Repeat,
    pub time: Time,
    pub fence: Fence,
    pub body: Body,
    /// The effect of the request.
    pub what: &'static str,
    /// Whether these bytes are the encoded arguments of the request.
    pub is_request: fn(&[u8]) -> bool,
}

/// Whether the request `number` may change names or attributes, and not only bytes of one object.
pub fn changes_names(number: u16) -> bool {
    find(number).is_some_and(|r| r.fence == Fence::Free && r.repeat != Repeat::Harmless)
}

/// Returns the declaration of the request `number`.
pub fn find(number: u16) -> Option<&'static Declared> {
    match INDEX.get(number as usize) {
        Some(&at) if at != NONE => REQUESTS.get(at as usize),
        _ => None,
    }
}

const NONE: u8 = u8::MAX;
/// For each request number, the request's index in [`REQUESTS`].
static INDEX: [u8; 256] = {
    assert!(TABLE.len() < NONE as usize);
    let mut index = [NONE; 256];
    let mut i = 0;
    while i < TABLE.len() {
        let number = TABLE[i].number as usize;
        assert!(number < 256 && index[number] == NONE, "each number once");
        index[number] = i as u8;
        i += 1;
    }
    index
};

/// The reply to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The reply without `body`, encoded; at most [`super::MAX_HEAD`] bytes.
    pub head: Vec<u8>,
    /// Bytes that travel with the reply; at most [`super::MAX_BODY`].
    pub body: Vec<u8>,
}

impl Reply {
    fn new(reply: &impl Wire, body: Vec<u8>) -> Reply {
        let head = encode(reply);
        Reply { head, body }
    }
}

/// A request as its callers see it: its number, the type of its arguments and that of its reply.
pub struct Signature<A, R> {
    number: u16,
    types: PhantomData<fn(A) -> R>,
}

impl<A, R> Signature<A, R> {
    const fn new(number: u16) -> Signature<A, R> {
        let types = PhantomData;
        Signature { number, types }
    }

    /// The request's number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Encodes the arguments as bytes.
    pub fn encode(&self, arguments: &impl Wire<Owned = A>) -> Vec<u8> {
        encode(arguments)
    }

    /// The request's number, and its arguments as bytes.
    pub fn message(&self, arguments: &impl Wire<Owned = A>) -> (u16, Vec<u8>) {
        (self.number, encode(arguments))
    }

    /// Decodes the reply.
    ///
    /// # Errors
    /// EPROTO if `head` isn't an encoded reply.
    pub fn decode(&self, head: &[u8]) -> Result<R, Errno>
    where
        R: Wire,
    {
        decode(head).ok_or(Errno::PROTO)
    }
}

/// Expands to a tuple of these types, or to the type itself if there is one.
macro_rules! tuple {
    () => { () };
    ($t:ty) => { $t };
    ($($t:ty),+) => { ($($t),+) };
}

/// Expands to the pattern of a tuple with these names, or to the name itself if there is one.
macro_rules! names {
    () => { () };
    ($arg:ident) => { $arg };
    ($($arg:ident),+) => { ($($arg),+) };
}

macro_rules! requests {
    ($(
        $(#[$theme:meta])+
        $trait:ident {$(
            $name:ident $number:literal $handler:ident ($($arg:ident: $t:ty),* $(,)?) -> $reply:ty,
            $class:ident $repeat:ident $time:ident $fence:ident $body:ident,
            $what:literal;
        )+}
    )+) => {
        /// The numbers of the requests.
        pub mod kind {
            $($(
                #[doc = $what]
                pub const $name: u16 = $number;
            )+)+
        }

        /// The requests, with the types of their arguments and replies.
        pub mod request {
            use super::{Signature, arguments, kind, replies};
            $($(
                #[doc = $what]
                pub const $name: Signature<arguments::$name, replies::$name> =
                    Signature::new(kind::$name);
            )+)+
        }

        /// The arguments of each request: a tuple, or a single one.
        #[allow(non_camel_case_types, reason = "named like the numbers")]
        #[allow(clippy::upper_case_acronyms, reason = "named like the numbers")]
        pub mod arguments {
            use super::*;
            $($(
                #[doc = $what]
                pub type $name = tuple!($($t),*);
            )+)+
        }

        /// The reply to each request.
        #[allow(non_camel_case_types, reason = "named like the numbers")]
        #[allow(clippy::upper_case_acronyms, reason = "named like the numbers")]
        pub mod replies {
            use super::*;
            $($(
                #[doc = $what]
                pub type $name = $reply;
            )+)+
        }

        /// All requests, by themes.
        pub static REQUESTS: &[Declared] = TABLE;
        const TABLE: &[Declared] = &[$($(Declared {
            number: $number,
            name: stringify!($name),
            arguments_text: stringify!($($arg: $t),*),
            reply_text: stringify!($reply),
            class: Class::$class,
            repeat: Repeat::$repeat,
            time: Time::$time,
            fence: Fence::$fence,
            body: Body::$body,
            what: $what,
            is_request: |head| decode::<arguments::$name>(head).is_some(),
        },)+)+];

        $(
            $(#[$theme])+
            #[allow(clippy::too_many_arguments, reason = "a request has as many as it needs")]
            pub(crate) trait $trait {$(
                handler! { $body $what, $handler($($arg: $t),*) -> $reply }
            )+}
        )+

        /// Carries out a request: decodes its arguments, calls its handler, encodes the reply.
        ///
        /// # Errors
        /// EPROTO if `kind` isn't the number of a request, or `head` isn't its arguments; else
        /// those of the handler.
        pub(crate) fn dispatch<C: $($trait +)+>(
            call: &C,
            kind: u16,
            head: &[u8],
            body: &[u8],
        ) -> Result<Reply, Errno> {
            match kind {
                $($(
                    kind::$name => {
                        let names!($($arg),*): arguments::$name = decode(head).ok_or(Errno::PROTO)?;
                        let handler = <C as $trait>::$handler;
                        reply!($body, body, handler, call $(, $arg)*)
                    }
                )+)+
                _ => Err(Errno::PROTO),
            }
        }
    };
}

/// Declares the method of a request. Bytes sent with the request are its last parameter; bytes
/// received with the reply are the second half of its result.
macro_rules! handler {
    (None $what:literal, $name:ident($($arg:ident: $t:ty),*) -> $reply:ty) => {
        #[doc = $what]
        fn $name(&self, $($arg: $t),*) -> Result<$reply, Errno>;
    };
    (Sent $what:literal, $name:ident($($arg:ident: $t:ty),*) -> $reply:ty) => {
        #[doc = $what]
        fn $name(&self, $($arg: $t,)* body: &[u8]) -> Result<$reply, Errno>;
    };
    (Received $what:literal, $name:ident($($arg:ident: $t:ty),*) -> $reply:ty) => {
        #[doc = $what]
        fn $name(&self, $($arg: $t),*) -> Result<($reply, Vec<u8>), Errno>;
    };
}

/// Calls a method that [`handler`] has declared.
macro_rules! reply {
    (None, $sent:ident, $handler:ident, $($arg:ident),*) => {
        Ok(Reply::new(&$handler($($arg),*)?, Vec::new()))
    };
    (Sent, $sent:ident, $handler:ident, $($arg:ident),*) => {
        Ok(Reply::new(&$handler($($arg),*, $sent)?, Vec::new()))
    };
    (Received, $sent:ident, $handler:ident, $($arg:ident),*) => {{
        let (reply, received) = $handler($($arg),*)?;
        Ok(Reply::new(&reply, received))
    }};
}

type Bytes = Vec<u8>;

requests! {
    /// Look-ups: entries, inodes, lists of directories.
    Lookups {
        LOOKUP 1 lookup (parent: ObjectId, name: Bytes) -> Option<Entry>,
            Leaf Harmless Brief Free None, "The entry of this name.";
        STAT 2 stat (id: ObjectId) -> Record,
            Leaf Harmless Brief Free None, "The inode.";
        LIST 8 list (dir: ObjectId, shard: u64, after: Bytes) -> (u64, bool),
            Leaf Harmless Brief Free Received,
            "Entries of a directory behind this name; the shard to go on in, and whether that was \
             all.";
        LOOKUP_STAT 33 lookup_stat (
            parent: ObjectId, name: Bytes,
        ) -> (Option<Entry>, Option<Record>),
            Leaf Harmless Brief Free None,
            "The entry, and the inode if it is on the asked node, too.";
        LOOKUP_OPEN 37 lookup_open (
            parent: ObjectId, name: Bytes, usage: u64,
        ) -> (Option<Entry>, Option<Record>, bool),
            Leaf Harmless Brief Free None,
            "As LOOKUP_STAT, and as OPEN if it is a file on the asked node; whether it is open \
             now.";
        LOOKUP_ALL 102 lookup_all (
            parent: ObjectId, names: List<Bytes>,
        ) -> List<Result<Option<Entry>, u32>>,
            Leaf Harmless Brief Free None, "The entry of each name, or an errno.";
        KNOWN_NAMES 118 known_names (
            shard: u64, after: Bytes, dead: List<u32>,
        ) -> Option<(u64, Bytes)>,
            Leaf Harmless Brief Free Received,
            "Names by which objects are found without these nodes (`salvage.rs`), behind this key; \
             the shard and key to go on behind.";
    }

    /// Attributes of objects, those of POSIX and extended ones.
    Attributes {
        SET_ATTR 3 set_attr (id: ObjectId, set: SetAttr) -> (),
            Leaf Once Brief Free None, "Sets attributes of an object.";
        ATTRIBUTE 4 attribute (id: ObjectId, name: Bytes) -> (),
            Leaf Harmless Brief Free Received, "The value of an extended attribute.";
        ATTRIBUTES 5 attributes (id: ObjectId) -> List<Bytes>,
            Leaf Harmless Brief Free None, "The names of all extended attributes.";
        REMOVE_ATTRIBUTE 7 remove_attribute (id: ObjectId, name: Bytes) -> (),
            Leaf Once Brief Free None, "Removes an extended attribute.";
        TOUCH 18 touch (dir: ObjectId, time: i64) -> (),
            Leaf Step Brief Free None,
            "An entry of the directory was made or removed at this time.";
        DIR_LINKS 19 dir_links (dir: ObjectId, difference: i64) -> (),
            Leaf Once Brief Free None, "Directories were made or removed in it.";
        SET_ATTRIBUTE 45 set_attribute (
            id: ObjectId, name: Bytes, must_be_new: Option<bool>, known: Option<(ObjectId, Bytes)>,
        ) -> (),
            Leaf Once Brief Free Sent, "Sets an extended attribute; known: a name of the object.";
    }

    /// Bytes of files at their home, and stable storage.
    Data {
        READ 9 read (id: ObjectId, offset: u64, length: u64) -> (),
            Leaf Harmless Brief Looks Received, "Bytes of a file.";
        WRITE 10 write (id: ObjectId, offset: Option<u64>) -> (u64, u64),
            Leaf Once Long Changes Sent,
            "Writes; without an offset at the end. The offset, and how many bytes were written.";
        TRUNCATE 11 truncate (id: ObjectId, size: u64) -> (),
            Leaf Once Long Changes None, "Sets the size.";
        RESERVE 12 reserve (id: ObjectId, offset: u64, length: u64, grow: bool) -> (),
            Leaf Once Long Changes None, "Reserves room.";
        PUNCH 13 punch (id: ObjectId, offset: u64, length: u64, grow: bool) -> (),
            Leaf Once Long Changes None, "Makes a hole.";
        SEEK 14 seek (id: ObjectId, offset: u64, hole: bool) -> u64,
            Leaf Harmless Brief Looks None, "The next data, or hole.";
        SYNC 15 sync (id: ObjectId) -> (),
            Leaf Harmless Long Looks None, "Writes a file to stable storage.";
        SYNC_ALL 31 sync_all () -> (),
            Leaf Harmless Long Free None, "Writes everything to stable storage.";
        SYNC_RECORDS 36 sync_records () -> (),
            Leaf Harmless Long Free None, "Makes all records durable, as far as the node can.";
        WRITE_PIECES 73 write_pieces (id: ObjectId, pieces: List<(u64, u32)>) -> (),
            Leaf Once Long Changes Sent,
            "Writes that were kept back, in their order: offset and length of each.";
        COPIED 77 copied (pairs: List<(ObjectId, u64)>) -> List<bool>,
            Leaf Harmless Brief Free None,
            "Of each id and edition, of which the asker has copies: whether that is the file's.";
    }

    /// Copies between files, and moves between media.
    Copying {
        COPY 94 copy (
            source: ObjectId, id: ObjectId, cuts: Option<u64>, ranges: List<(u64, u64, u64)>,
        ) -> u64,
            Bulk Once Long Both None,
            "Writes what lies in the source: from offset, to offset, length of each range. How \
             many bytes, at least one; ENODATA: there are none.";
        TO_FILES 100 to_files (id: ObjectId, chunk: u64) -> Option<u64>,
            Bulk Harmless Long Free None,
            "What the node has in memory, from this chunk on, is moved to `files` media; where to \
             go on.";
    }

    /// Files that other nodes have open.
    Opened {
        OPEN 16 open (id: ObjectId, usage: u64) -> Record,
            Leaf Harmless Brief Free None,
            "A file is open on the asking node, which knows this use of it by a number.";
        CLOSE 17 close (id: ObjectId, usage: u64) -> (),
            Leaf Harmless Brief Free None, "It isn't open there any more.";
        REOPEN 32 reopen (id: ObjectId, usage: u64) -> (),
            Leaf Harmless Brief Free None, "As OPEN, if the home doesn't know it any more.";
        USES 140 uses (ids: List<ObjectId>) -> List<u64>,
            Leaf Harmless Brief Free None,
            "Of each object of the asker: the number by which the asked node has it open; 0: not; \
             all ones: it can't say just now.";
    }

    /// Making objects, and the processes that have made ephemeral files.
    Creating {
        CREATE 64 create (
            at: (ObjectId, Bytes), new: (u32, u32, u32, u64, Bytes), distribution: u8,
            controls: u64, epoch: u64, usage: Option<u64>, also: (Option<Creator>, Option<Stub>),
        ) -> Result<ObjectId, Entry>,
            Entry Once Brief Free None,
            "Makes an object; its id, or what is there. With a use, a file is open from the \
             start.";
        CREATORS 90 creators (creators: List<Creator>) -> List<bool>,
            Leaf Harmless Brief Free None, "Whether these processes of the asked node run.";
        CREATE_THERE 113 create_there (
            at: (ObjectId, Bytes), new: (u32, u32, u32, u64, Bytes), distribution: u8,
            controls: u64, epoch: u64, usage: Option<u64>, also: (Option<Creator>, Option<Stub>),
        ) -> Result<ObjectId, Entry>,
            Composite Once Long Free None,
            "As CREATE, but the object lies on the asked node, wherever the entry does: it has \
             room.";
    }

    /// Changes of entries.
    Entries {
        INSERT 65 insert (
            parent: ObjectId, name: Bytes, entry: Entry, held: bool, epoch: u64,
        ) -> Option<Entry>,
            Entry Once Brief Free None, "Makes an entry; what is there.";
        UNLINK 66 unlink (parent: ObjectId, name: Bytes, epoch: u64, names: bool) -> (),
            Entry Once Long Free None, "Removes a name; names: also one that is on paths.";
        LINK 67 link (id: ObjectId, parent: ObjectId, name: Bytes, epoch: u64) -> (),
            Composite Once Long Free None, "Gives a file another name.";
        RENAME 68 rename (
            from: (ObjectId, Bytes), to: (ObjectId, Bytes), mode: RenameMode,
            names: Option<ObjectId>, epoch: u64,
        ) -> (),
            Composite Once Long Free None,
            "Renames; names: which directory may be replaced, where names on paths may change. \
             EREMOTE: they mustn't.";
        REPLACE 69 replace (
            parent: ObjectId, name: Bytes, entry: Entry, mode: RenameMode, names: Option<ObjectId>,
            epoch: u64,
        ) -> bool,
            Entry Once Long Free None,
            "Puts an entry at a name, as RENAME does; whether both were the same object.";
        REMOVE_DIR 70 remove_dir (parent: ObjectId, name: Bytes) -> (),
            Composite Once Long Free None, "Removes a directory, which is empty and frozen.";
        JOIN_EXCHANGE 71 join_exchange (
            at: (ObjectId, Bytes), comes: Entry, leads: (ObjectId, Bytes), exchange: u64,
            names: bool, epoch: u64,
        ) -> Option<Entry>,
            Entry Once Brief Free None, "The name joins an exchange, which brings it this entry.";
        EXCHANGE 72 exchange (
            parent: ObjectId, name: Bytes, other: ObjectId, with: Bytes, names: bool, epoch: u64,
        ) -> (),
            Composite Once Long Free None, "Exchanges two names; the first one leads.";
        UNLINK_FROM 91 unlink_from (
            parent: ObjectId, name: Bytes, entry: Entry, epoch: u64,
        ) -> bool,
            Entry Step Brief Free None,
            "Removes the name of a file whose maker has ended; whether it was that file's.";
        INSERT_ALL 98 insert_all (
            parent: ObjectId, entries: List<(Bytes, Entry)>, epoch: u64,
        ) -> List<Result<Option<Entry>, u32>>,
            Entry Once Long Free None, "Makes entries; of each, what is there, or an errno.";
        REMOVE_ALL 103 remove_all (
            parent: ObjectId, entries: List<(Bytes, Entry)>, epoch: u64,
        ) -> List<Result<bool, u32>>,
            Entry Once Long Free None,
            "Removes files; of each, whether it was that and is gone, or an errno.";
        TOGETHER 108 together (
            parent: ObjectId, name: Bytes, entry: Entry, other: ObjectId, with: Bytes, there: Entry,
        ) -> bool,
            Entry Harmless Brief Free None, "Whether the names are these entries, at one time.";
    }

    /// Names of an object whose entries lie on other nodes, and exchanges in progress.
    Links {
        ADD_LINK 23 add_link (
            id: ObjectId, parent: ObjectId, name: Bytes, from: ObjectId, old: Bytes,
        ) -> (),
            Leaf Step Brief Free None, "The object is about to get this name instead of the other.";
        UNDO_LINK 24 undo_link (id: ObjectId, parent: ObjectId, name: Bytes, slot: u32) -> (),
            Leaf Step Brief Free None,
            "It doesn't get this name after all; slot: of the other name.";
        DROP_LINK 25 drop_link (
            id: ObjectId, parent: ObjectId, name: Bytes, new: Option<(ObjectId, Bytes)>,
            again: bool,
        ) -> (),
            Leaf Step Long Free None, "It has lost this name; again: that may be done already.";
        HAS_LINK 26 has_link (id: ObjectId, parent: ObjectId, name: Bytes) -> bool,
            Leaf Harmless Brief Free None, "Whether it is still to get the name.";
        OFFERED 34 offered (id: ObjectId, parent: ObjectId, name: Bytes) -> Option<bool>,
            Leaf Harmless Brief Free None, "What has become of a link: whether it counts.";
        RELEASE 35 release (parent: ObjectId, name: Bytes, entry: Entry, stays: bool) -> (),
            Leaf Step Brief Free None, "Ends the holding of an entry.";
        EXCHANGE_LINK 38 exchange_link (
            id: ObjectId, parent: ObjectId, name: Bytes, from: ObjectId, old: Bytes, exchange: u64,
        ) -> (),
            Leaf Step Brief Free None, "As ADD_LINK, by an exchange.";
        END_EXCHANGE_LINK 39 end_exchange_link (
            id: ObjectId, parent: ObjectId, name: Bytes, exchange: u64,
        ) -> (),
            Leaf Step Brief Free None, "It doesn't get this name by the exchange after all.";
        END_EXCHANGE 43 end_exchange (
            parent: ObjectId, name: Bytes, exchange: u64, done: bool,
        ) -> (),
            Leaf Step Brief Free None, "Ends the exchange of a name that has joined it.";
        EXCHANGE_STANDS 44 exchange_stands (parent: ObjectId, name: Bytes, exchange: u64) -> bool,
            Leaf Harmless Brief Free None,
            "Whether the exchange that this name leads is in progress.";
        DROP_LINKS 104 drop_links (
            parent: ObjectId, files: List<(ObjectId, Bytes)>,
        ) -> List<Result<(), u32>>,
            Leaf Step Long Free None,
            "They have lost these names, as by DROP_LINK; of each, nothing or an errno.";
    }

    /// Changes of directories and symbolic links, and the epoch of names.
    Directories {
        EPOCH 20 epoch () -> u64,
            Leaf Harmless Brief Free None, "The epoch of names.";
        FREEZE 21 freeze (epoch: u64, dir: ObjectId) -> bool,
            Leaf Harmless Brief Free None,
            "Names are about to change; nothing is made in the directory. Whether it has entries \
             here.";
        THAW 22 thaw (epoch: u64) -> (),
            Leaf Harmless Brief Free None, "Names have changed.";
        NAMES_RMDIR 128 names_rmdir (parent: ObjectId, name: Bytes, epoch: u64) -> (),
            Names Once Long Free None, "Removes a directory.";
        NAMES_RENAME 129 names_rename (
            from: ObjectId, name: Bytes, to: ObjectId, new: Bytes, mode: RenameMode, epoch: u64,
        ) -> (),
            Names Once Long Free None, "Renames what is on paths.";
        NAMES_SET_ATTR 130 names_set_attr (id: ObjectId, set: SetAttr) -> (),
            Names Once Long Free None, "Sets attributes of what is on paths.";
        NAMES_UNLINK 131 names_unlink (parent: ObjectId, name: Bytes, epoch: u64) -> (),
            Names Once Long Free None, "Removes a symbolic link.";
    }

    /// Locks of programs, and how long they hold.
    Locks {
        LOCK_TEST 27 lock_test (lock: Request) -> Option<InTheWay>,
            Leaf Harmless Brief Looks None, "What is in the way of a lock.";
        LOCK 28 lock (lock: Request) -> Option<InTheWay>,
            Leaf Step Brief Changes None, "Sets or gives up a lock; what is in the way.";
        END_LOCKS 29 end_locks (id: ObjectId, owner: Owner) -> (),
            Leaf Step Brief Free None, "The owner gives up all its locks of the object.";
        BLOCKERS 40 blockers (lock: Request) -> List<Owner>,
            Leaf Harmless Brief Free None, "The processes that are in the way.";
        WAITS 41 waits (owner: Owner) -> Waits,
            Leaf Harmless Brief Free None, "What a process of the asked node waits for.";
        HOLDS 42 holds (pairs: List<(ObjectId, Owner)>) -> List<bool>,
            Leaf Harmless Brief Free None,
            "Whether each of these owners of the asked node may have locks there.";
        RENEW 114 renew (ids: List<ObjectId>) -> List<u32>,
            Leaf Harmless Brief Free None,
            "How it stands with the asker's locks, which hold for another lease then \
             (`leases.rs`).";
    }

    /// Declared controls of files.
    Controls {
        LAMINATE 46 laminate (id: ObjectId) -> (),
            Leaf Once Long Free None,
            "The asker had it open for writing and has closed it. EXFULL: SEAL has to do it.";
        SEAL 92 seal (id: ObjectId, lease: u64, cuts: u64) -> bool,
            Leaf Once Long Changes None,
            "As LAMINATE, all parts being cut; it is laminated, and the lease is given back.";
        COUNT_USES 105 count_uses (id: ObjectId, word: u64, is_declared: bool) -> List<u64>,
            Entry Harmless Brief Free None,
            "Controls are about to be declared, or were: the processes that map the file for \
             writing. The processes of the asked node that have it open have noted that at its \
             home now.";
        BEGIN_DECLARING 106 begin_declaring (id: ObjectId, word: u64) -> Option<List<u32>>,
            Leaf Harmless Brief Free None,
            "Controls are about to be declared: the nodes that have the file open. None: \
             declared, nobody has it open.";
        END_DECLARING 107 end_declaring (id: ObjectId, word: u64) -> Option<DeclareOutcome>,
            Leaf Harmless Brief Free None,
            "Whether they were declared, who has the file open, and who maps it. None: it has to \
             be begun again.";
    }

    /// Searches in the index of attributes.
    Search {
        SEARCH 61 search (
            words: List<Word>, from: Mark, only: Option<u64>, most: u64,
        ) -> Page<Hit, Mark>,
            Leaf Harmless Brief Free None,
            "Objects that have these attributes; only: those with a name of this hash.";
        WRITTEN 62 written (of: Option<u64>, from: u64, most: u64) -> Page<(u64, Bytes), u64>,
            Leaf Harmless Brief Free None, "Keys of attributes, or the values of one.";
        INDEXED_NAME 63 indexed_name (id: ObjectId) -> (ObjectId, Bytes),
            Leaf Harmless Brief Free None,
            "The directory and name by which the object is in the index.";
        FIND 87 find (dir: ObjectId, from: Place, terms: List<Wanted>) -> Page<Match, Place>,
            Leaf Harmless Brief Free None, "Objects in a directory for which these terms hold.";
        DESCRIBE 109 describe (ids: List<ObjectId>) -> List<Result<Description, u32>>,
            Leaf Harmless Brief Free None,
            "What the first of these are and have, at least one, or an errno.";
    }

    /// The pool's origin, whose service runs on one node.
    Origin {
        ORIGIN 115 origin (number: u64, request: Bytes) -> Option<Bytes>,
            Leaf Harmless Brief Free None,
            "The next message of the asked node's origin service about a request that the asking \
             node knows by this number; with its bytes: begins it.";
        IS_OPEN 116 is_open (id: ObjectId) -> bool,
            Leaf Harmless Brief Free None, "Whether any process has the file open.";
        QUOTA 117 quota (granted: Option<(i64, i64)>) -> (i64, i64),
            Leaf Harmless Brief Free None,
            "Sets what the asked node is granted of the quota, if it is given: bytes and files. \
             What it uses.";
    }

    /// Striped files, at their home, and the holders of their leases.
    Stripes {
        LAYOUT 48 layout (id: ObjectId, write: bool) -> (u64, u64, u32, u64),
            Leaf Harmless Brief Looks None,
            "Size, cuts, appends and declared controls of a striped file; write: parts will be \
             written.";
        GROW 49 grow (id: ObjectId, cuts_and_appends: (u64, u32), end: u64) -> (),
            Leaf Harmless Brief Changes None, "The file is written that far.";
        LEASE 50 lease (id: ObjectId, process: u32, over: Option<u64>) -> Result<Granted, Holder>,
            Leaf Once Brief Changes None,
            "A lease of the file, or who has it; over: the number of one that is to be taken \
             over.";
        END_LEASE 51 end_lease (
            id: ObjectId, lease: u64, cuts_and_appends: (u64, u32), size: Option<u64>,
        ) -> bool,
            Leaf Once Brief Changes None, "Gives the lease back; whether it was still the asker's.";
        LIVES 59 lives (process: u32) -> bool,
            Leaf Harmless Brief Free None, "Whether a process of the asked node lives.";
        PLACES 110 places (id: ObjectId, cuts: u64, chunk: u64, count: u64) -> List<(u64, Placed)>,
            Leaf Harmless Brief Looks None,
            "Returns which of `count` chunks from `chunk` on lie on other nodes, and where \
             (`placements.rs`).";
        PLACE 111 place (id: ObjectId, cuts: u64, chunk: u64, end: u64) -> Chunk,
            Leaf Harmless Brief Changes None,
            "Returns where a chunk lies that is about to be written up to `end`.";
        ASSIGN 112 assign (
            id: ObjectId, cuts: u64, chunk: u64, placed: Placed, inline: Option<u64>,
        ) -> Placed,
            Leaf Step Brief Changes None,
            "That node has reserved the chunk, and what lay in the record is there; where it \
             lies.";
    }

    /// Parts of striped files.
    Parts {
        READ_PART 52 read_part (id: ObjectId, cuts: u64, offset: u64, length: u64) -> (),
            Leaf Harmless Brief Looks Received, "Bytes of a part.";
        WRITE_PART 53 write_part (id: ObjectId, cuts: u64, offset: u64) -> u64,
            Leaf Once Long Changes Sent, "Writes to a part, or the home; how many bytes.";
        CUT_PART 54 cut_part (id: ObjectId, cuts: u64, size: u64) -> (),
            Leaf Step Long Free None, "Cuts a part.";
        STAT_PART 55 stat_part (id: ObjectId) -> Option<Record>,
            Leaf Harmless Brief Free None, "The inode of a part.";
        SYNC_PART 56 sync_part (id: ObjectId) -> (),
            Leaf Harmless Long Free None, "Writes a part to stable storage.";
        ROOM_PART 57 room_part (
            id: ObjectId, cuts: u64, offset: u64, length: u64, punch: bool,
        ) -> (),
            Leaf Once Long Changes None, "Reserves room in a part, or makes a hole.";
        DROP_PART 58 drop_part (id: ObjectId) -> (),
            Leaf Harmless Long Free None, "The file is gone.";
        MERGE 85 merge (
            id: ObjectId, cuts: Option<u64>, offset: u64,
        ) -> Option<(u64, u64, Option<u32>)>,
            Leaf Once Long Changes Sent,
            "Runs that a mapping on another node has changed (`merge.rs`). Which of these bytes \
             somebody else had changed: start, end, node.";
        LANDED 93 landed (id: ObjectId) -> (),
            Leaf Harmless Long Free None,
            "A part came in a burst, and is to be moved from memory (`data/drain.rs`).";
        PART_ON_FILES 99 part_on_files (id: ObjectId, word: u64) -> (),
            Leaf Harmless Long Free None,
            "The part's bytes lie on `files` media from now on, or may lie anywhere \
             (`data/on_files.rs`).";
    }
}
