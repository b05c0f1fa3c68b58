//! The table of requests between nodes.
//!
//! Each request is declared once: number, name, arguments and reply, class, the effect of carrying
//! it out a second time, whether it may be long, which of its leading ids are fenced ([`Fence`]),
//! the bytes that travel with it ([`Body`]), and one line of documentation. From the table come the
//! numbers in [`kind`], what daemons ask about a request ([`find`]), and
//! `docs/reference/protocol.md`. Two requests with one number don't compile.
//!
//! Numbers are never used again for another request.

use super::messages::{List, decode};
use forebay_store::index::find::{Place, Wanted};
use forebay_store::locks::{Owner, Request};
use forebay_store::placements::Placed;
use forebay_store::record::{Entry, Mark, Word};
use forebay_store::{Maker, ObjectId, RenameMode, SetAttr};

/// Who works on a question: a question of one class may wait for answers to those of a lower one
/// only, so that workers of several nodes never wait for each other in a circle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Needs nothing but this node's store.
    Leaf,
    /// May ask other nodes questions of the class before.
    Entry,
    /// May ask for those of the two classes before.
    Composite,
    /// Changes directories: one at a time in the whole pool. May ask for all others.
    Names,
    /// Copies or moves many bytes. May ask for those of the first class.
    Bulk,
}

/// What carrying out a request a second time would do, when nobody knows whether it was carried
/// out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// Nothing: it changes nothing, or finds done what it asks for, whatever came between.
    Harmless,
    /// Nothing, unless others have gone on in between: so its answer is noted, where it outlives
    /// the daemon. If not even that is known, it is carried out again.
    Step,
    /// It would take back what others have done since. Its answer is noted; without it nobody
    /// knows (EIO).
    Once,
}

/// How long a request may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Time {
    /// Less than programs wait for a node that doesn't answer.
    Brief,
    /// Longer: it goes to a disk, gives much room back, copies, or waits for third nodes. Not those
    /// that get bytes back.
    Long,
}

/// What a node that has lost its locks may not ask any more (`serve/fences.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// The request isn't about bytes or locks of a file.
    Free,
    /// About those of the object in its first 8 bytes; changes nothing.
    Looks,
    /// As [`Fence::Looks`], and changes it.
    Changes,
    /// About the objects in its first and its second 8 bytes; changes one of them.
    Both,
}

/// Bytes that travel beside the arguments or the reply.
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
    /// The arguments, with their types: checked against what nodes ask by
    /// `posix/tests/questions.rs`.
    pub asks: &'static str,
    /// The type of the reply.
    pub answers: &'static str,
    pub class: Class,
    pub repeat: Repeat,
    pub time: Time,
    pub fence: Fence,
    pub body: Body,
    /// What the request does.
    pub what: &'static str,
    /// Whether these bytes are such arguments.
    pub is_question: fn(&[u8]) -> bool,
}

/// The request of this number.
pub fn find(number: u16) -> Option<&'static Declared> {
    match INDEX.get(number as usize) {
        Some(&at) if at != NONE => REQUESTS.get(at as usize),
        _ => None,
    }
}

const NONE: u8 = u8::MAX;
/// Where the request of each number is in [`REQUESTS`].
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

macro_rules! requests {
    ($(
        $name:ident $number:literal ($($arg:ident: $t:ty),*) -> $reply:ty,
        $class:ident $repeat:ident $time:ident $fence:ident $body:ident,
        $what:literal;
    )*) => {
        /// The numbers of the requests.
        pub mod kind {
            $(
                #[doc = $what]
                pub const $name: u16 = $number;
            )*
        }

        /// All requests.
        pub static REQUESTS: &[Declared] = TABLE;
        const TABLE: &[Declared] = &[$(Declared {
            number: $number,
            name: stringify!($name),
            asks: stringify!($($arg: $t),*),
            answers: stringify!($reply),
            class: Class::$class,
            repeat: Repeat::$repeat,
            time: Time::$time,
            fence: Fence::$fence,
            body: Body::$body,
            what: $what,
            is_question: |head| decode::<question!($($t),*)>(head).is_some(),
        }),*];
    };
}

/// The type of the arguments: that of a single one, or a tuple.
macro_rules! question {
    () => { () };
    ($t:ty) => { $t };
    ($($t:ty),+) => { ($($t),+) };
}

type Bytes = Vec<u8>;

requests! {
    LOOKUP 1 (parent: ObjectId, name: Bytes) -> Option<Entry>,
        Leaf Harmless Brief Free None, "The entry of this name.";
    STAT 2 (id: ObjectId) -> Record,
        Leaf Harmless Brief Free None, "The inode.";
    SET_ATTR 3 (id: ObjectId, set: SetAttr) -> (),
        Leaf Once Brief Free None, "Sets attributes of an object.";
    ATTRIBUTE 4 (id: ObjectId, name: Bytes) -> (),
        Leaf Harmless Brief Free Received, "The value of an extended attribute.";
    ATTRIBUTES 5 (id: ObjectId) -> List<Bytes>,
        Leaf Harmless Brief Free None, "The names of all extended attributes.";
    REMOVE_ATTRIBUTE 7 (id: ObjectId, name: Bytes) -> (),
        Leaf Once Brief Free None, "Removes an extended attribute.";
    LIST 8 (dir: ObjectId, shard: u64, after: Bytes) -> (u64, bool),
        Leaf Harmless Brief Free Received,
        "Entries of a directory behind this name; the shard to go on in, and whether that was all.";
    READ 9 (id: ObjectId, offset: u64, length: u64) -> (),
        Leaf Harmless Brief Looks Received, "Bytes of a file.";
    WRITE 10 (id: ObjectId, offset: Option<u64>) -> (u64, u64),
        Leaf Once Long Changes Sent,
        "Writes; without an offset at the end. The offset, and how many bytes were written.";
    TRUNCATE 11 (id: ObjectId, size: u64) -> (),
        Leaf Once Long Changes None, "Sets the size.";
    RESERVE 12 (id: ObjectId, offset: u64, length: u64, grow: bool) -> (),
        Leaf Once Long Changes None, "Reserves room.";
    PUNCH 13 (id: ObjectId, offset: u64, length: u64, grow: bool) -> (),
        Leaf Once Long Changes None, "Makes a hole.";
    SEEK 14 (id: ObjectId, offset: u64, hole: bool) -> u64,
        Leaf Harmless Brief Looks None, "The next data, or hole.";
    SYNC 15 (id: ObjectId) -> (),
        Leaf Harmless Long Looks None, "Writes a file to stable storage.";
    OPEN 16 (id: ObjectId, usage: u64) -> Record,
        Leaf Harmless Brief Free None,
        "A file is open on the asking node, which knows this use of it by a number.";
    CLOSE 17 (id: ObjectId, usage: u64) -> (),
        Leaf Harmless Brief Free None, "It isn't open there any more.";
    TOUCH 18 (dir: ObjectId, time: i64) -> (),
        Leaf Step Brief Free None, "An entry of the directory was made or removed at this time.";
    DIR_LINKS 19 (dir: ObjectId, difference: i64) -> (),
        Leaf Once Brief Free None, "Directories were made or removed in it.";
    EPOCH 20 () -> u64,
        Leaf Harmless Brief Free None, "The epoch of names.";
    FREEZE 21 (epoch: u64, dir: ObjectId) -> bool,
        Leaf Harmless Brief Free None,
        "Names are about to change; nothing is made in the directory. Whether it has entries here.";
    THAW 22 (epoch: u64) -> (),
        Leaf Harmless Brief Free None, "Names have changed.";
    ADD_LINK 23 (id: ObjectId, parent: ObjectId, name: Bytes, from: ObjectId, old: Bytes) -> (),
        Leaf Step Brief Free None, "The object is about to get this name instead of the other.";
    UNDO_LINK 24 (id: ObjectId, parent: ObjectId, name: Bytes, slot: u32) -> (),
        Leaf Step Brief Free None, "It doesn't get this name after all; slot: of the other name.";
    DROP_LINK 25 (id: ObjectId, parent: ObjectId, name: Bytes, new: Option<(ObjectId, Bytes)>, again: bool) -> (),
        Leaf Step Long Free None, "It has lost this name; again: that may be done already.";
    HAS_LINK 26 (id: ObjectId, parent: ObjectId, name: Bytes) -> bool,
        Leaf Harmless Brief Free None, "Whether it is still to get the name.";
    LOCK_TEST 27 (lock: Request) -> Option<InTheWay>,
        Leaf Harmless Brief Looks None, "What is in the way of a lock.";
    LOCK 28 (lock: Request) -> Option<InTheWay>,
        Leaf Step Brief Changes None, "Sets or gives up a lock; what is in the way.";
    END_LOCKS 29 (id: ObjectId, owner: Owner) -> (),
        Leaf Step Brief Free None, "The owner gives up all its locks of the object.";
    SYNC_ALL 31 () -> (),
        Leaf Harmless Long Free None, "Writes everything to stable storage.";
    REOPEN 32 (id: ObjectId, usage: u64) -> (),
        Leaf Harmless Brief Free None, "As OPEN, if the home doesn't know it any more.";
    LOOKUP_STAT 33 (parent: ObjectId, name: Bytes) -> (Option<Entry>, Option<Record>),
        Leaf Harmless Brief Free None, "The entry, and the inode if it is on the asked node, too.";
    OFFERED 34 (id: ObjectId, parent: ObjectId, name: Bytes) -> Option<bool>,
        Leaf Harmless Brief Free None, "What has become of a link: whether it counts.";
    RELEASE 35 (parent: ObjectId, name: Bytes, entry: Entry, stays: bool) -> (),
        Leaf Step Brief Free None, "Ends the holding of an entry.";
    SYNC_RECORDS 36 () -> (),
        Leaf Harmless Long Free None, "Makes all records durable, as far as the node can.";
    LOOKUP_OPEN 37 (parent: ObjectId, name: Bytes, usage: u64) -> (Option<Entry>, Option<Record>, bool),
        Leaf Harmless Brief Free None,
        "As LOOKUP_STAT, and as OPEN if it is a file on the asked node; whether it is open now.";
    EXCHANGE_LINK 38 (id: ObjectId, parent: ObjectId, name: Bytes, from: ObjectId, old: Bytes, exchange: u64) -> (),
        Leaf Step Brief Free None, "As ADD_LINK, by an exchange.";
    END_EXCHANGE_LINK 39 (id: ObjectId, parent: ObjectId, name: Bytes, exchange: u64) -> (),
        Leaf Step Brief Free None, "It doesn't get this name by the exchange after all.";
    BLOCKERS 40 (lock: Request) -> List<Owner>,
        Leaf Harmless Brief Free None, "The processes that are in the way.";
    WAITS 41 (owner: Owner) -> Waits,
        Leaf Harmless Brief Free None, "What a process of the asked node waits for.";
    HOLDS 42 (asked: List<(ObjectId, Owner)>) -> List<bool>,
        Leaf Harmless Brief Free None,
        "Whether each of these owners of the asked node may have locks there.";
    END_EXCHANGE 43 (parent: ObjectId, name: Bytes, exchange: u64, done: bool) -> (),
        Leaf Step Brief Free None, "Ends the exchange of a name that has joined it.";
    EXCHANGE_STANDS 44 (parent: ObjectId, name: Bytes, exchange: u64) -> bool,
        Leaf Harmless Brief Free None, "Whether the exchange that this name leads is in progress.";
    SET_ATTRIBUTE 45 (id: ObjectId, name: Bytes, must_be_new: Option<bool>, known: Option<(ObjectId, Bytes)>) -> (),
        Leaf Once Brief Free Sent, "Sets an extended attribute; known: a name of the object.";
    LAMINATE 46 (id: ObjectId) -> (),
        Leaf Once Long Free None,
        "The asker had it open for writing and has closed it. EXFULL: SEAL has to do it.";
    LAYOUT 48 (id: ObjectId, write: bool) -> (u64, u64, u32, u64),
        Leaf Harmless Brief Looks None,
        "Size, cuts, appends and declared controls of a striped file; write: parts will be written.";
    GROW 49 (id: ObjectId, cuts_and_appends: (u64, u32), end: u64) -> (),
        Leaf Harmless Brief Changes None, "The file is written that far.";
    LEASE 50 (id: ObjectId, process: u32, over: Option<u64>) -> Result<Granted, Holder>,
        Leaf Once Brief Changes None,
        "A lease of the file, or who has it; over: the number of one that is to be taken over.";
    END_LEASE 51 (id: ObjectId, lease: u64, cuts_and_appends: (u64, u32), size: Option<u64>) -> bool,
        Leaf Once Brief Changes None, "Gives the lease back; whether it was still the asker's.";
    READ_PART 52 (id: ObjectId, cuts: u64, offset: u64, length: u64) -> (),
        Leaf Harmless Brief Looks Received, "Bytes of a part.";
    WRITE_PART 53 (id: ObjectId, cuts: u64, offset: u64) -> u64,
        Leaf Once Long Changes Sent, "Writes to a part, or the home; how many bytes.";
    CUT_PART 54 (id: ObjectId, cuts: u64, size: u64) -> (),
        Leaf Step Long Free None, "Cuts a part.";
    STAT_PART 55 (id: ObjectId) -> Option<Record>,
        Leaf Harmless Brief Free None, "The inode of a part.";
    SYNC_PART 56 (id: ObjectId) -> (),
        Leaf Harmless Long Free None, "Writes a part to stable storage.";
    ROOM_PART 57 (id: ObjectId, cuts: u64, offset: u64, length: u64, punch: bool) -> (),
        Leaf Once Long Changes None, "Reserves room in a part, or makes a hole.";
    DROP_PART 58 (id: ObjectId) -> (),
        Leaf Harmless Long Free None, "The file is gone.";
    LIVES 59 (process: u32) -> bool,
        Leaf Harmless Brief Free None, "Whether a process of the asked node lives.";
    SEARCH 61 (words: List<Word>, from: Mark, only: Option<u64>, most: u64) -> Page<Hit, Mark>,
        Leaf Harmless Brief Free None,
        "Objects that have these attributes; only: those with a name of this hash.";
    WRITTEN 62 (of: Option<u64>, from: u64, most: u64) -> Page<(u64, Bytes), u64>,
        Leaf Harmless Brief Free None, "Keys of attributes, or the values of one.";
    INDEXED_NAME 63 (id: ObjectId) -> (ObjectId, Bytes),
        Leaf Harmless Brief Free None,
        "The directory and name by which the object is in the index.";
    CREATE 64 (at: (ObjectId, Bytes), new: (u32, u32, u32, u64, Bytes), distribution: u8, controls: u64, epoch: u64, usage: Option<u64>, maker: Option<Maker>) -> Result<ObjectId, Entry>,
        Entry Once Brief Free None,
        "Makes an object; its id, or what is there. With a use, a file is open from the start.";
    INSERT 65 (parent: ObjectId, name: Bytes, entry: Entry, held: bool, epoch: u64) -> Option<Entry>,
        Entry Once Brief Free None, "Makes an entry; what is there.";
    UNLINK 66 (parent: ObjectId, name: Bytes, epoch: u64, names: bool) -> (),
        Entry Once Long Free None, "Removes a name; names: also one that is on paths.";
    LINK 67 (id: ObjectId, parent: ObjectId, name: Bytes, epoch: u64) -> (),
        Composite Once Long Free None, "Gives a file another name.";
    RENAME 68 (from: (ObjectId, Bytes), to: (ObjectId, Bytes), mode: RenameMode, names: Option<ObjectId>, epoch: u64) -> (),
        Composite Once Long Free None,
        "Renames; names: which directory may be replaced, where names on paths may change. EREMOTE: they mustn't.";
    REPLACE 69 (parent: ObjectId, name: Bytes, entry: Entry, mode: RenameMode, names: Option<ObjectId>, epoch: u64) -> bool,
        Entry Once Long Free None,
        "Puts an entry at a name, as RENAME does; whether both were the same object.";
    REMOVE_DIR 70 (parent: ObjectId, name: Bytes) -> (),
        Composite Once Long Free None, "Removes a directory, which is empty and frozen.";
    JOIN_EXCHANGE 71 (at: (ObjectId, Bytes), comes: Entry, leads: (ObjectId, Bytes), exchange: u64, names: bool, epoch: u64) -> Option<Entry>,
        Entry Once Brief Free None, "The name joins an exchange, which brings it this entry.";
    EXCHANGE 72 (parent: ObjectId, name: Bytes, other: ObjectId, with: Bytes, names: bool, epoch: u64) -> (),
        Composite Once Long Free None, "Exchanges two names; the first one leads.";
    WRITE_PIECES 73 (id: ObjectId, pieces: List<(u64, u32)>) -> (),
        Leaf Once Long Changes Sent,
        "Writes that were kept back, in their order: offset and length of each.";
    COPIED 77 (asked: List<(ObjectId, u64)>) -> List<bool>,
        Leaf Harmless Brief Free None,
        "Of each id and edition, of which the asker has copies: whether that is the file's.";
    MERGE 85 (id: ObjectId, cuts: Option<u64>, offset: u64) -> Option<(u64, u64, Option<u32>)>,
        Leaf Once Long Changes Sent,
        "Runs that a mapping on another node has changed (`merge.rs`). \
         Which of these bytes somebody else had changed: start, end, node.";
    FIND 87 (dir: ObjectId, from: Place, terms: List<Wanted>) -> Page<Match, Place>,
        Leaf Harmless Brief Free None, "Objects in a directory for which these terms hold.";
    MAKERS 90 (makers: List<Maker>) -> List<bool>,
        Leaf Harmless Brief Free None, "Whether these processes of the asked node run.";
    UNLINK_FROM 91 (parent: ObjectId, name: Bytes, entry: Entry, epoch: u64) -> bool,
        Entry Step Brief Free None,
        "Removes the name of a file whose maker has ended; whether it was that file's.";
    SEAL 92 (id: ObjectId, lease: u64, cuts: u64) -> bool,
        Leaf Once Long Changes None,
        "As LAMINATE, all parts being cut; it is laminated, and the lease is given back.";
    LANDED 93 (id: ObjectId) -> (),
        Leaf Harmless Long Free None,
        "A part came in a burst, and is to be moved from memory (`data/drain.rs`).";
    COPY 94 (source: ObjectId, id: ObjectId, cuts: Option<u64>, ranges: List<(u64, u64, u64)>) -> u64,
        Bulk Once Long Both None,
        "Writes what lies in the source: from offset, to offset, length of each range. \
         How many bytes, at least one; ENODATA: there are none.";
    INSERT_ALL 98 (parent: ObjectId, entries: List<(Bytes, Entry)>, epoch: u64) -> List<Result<Option<Entry>, u32>>,
        Entry Once Long Free None, "Makes entries; of each, what is there, or an errno.";
    PART_ON_FILES 99 (id: ObjectId, word: u64) -> (),
        Leaf Harmless Long Free None,
        "The part's bytes lie on `files` media from now on, or may lie anywhere (`data/on_files.rs`).";
    TO_FILES 100 (id: ObjectId, chunk: u64) -> Option<u64>,
        Bulk Harmless Long Free None,
        "What the node has in memory, from this chunk on, is moved to `files` media; where to go on.";
    LOOKUP_ALL 102 (parent: ObjectId, names: List<Bytes>) -> List<Result<Option<Entry>, u32>>,
        Leaf Harmless Brief Free None, "The entry of each name, or an errno.";
    REMOVE_ALL 103 (parent: ObjectId, entries: List<(Bytes, Entry)>, epoch: u64) -> List<Result<bool, u32>>,
        Entry Once Long Free None,
        "Removes files; of each, whether it was that and is gone, or an errno.";
    DROP_LINKS 104 (parent: ObjectId, files: List<(ObjectId, Bytes)>) -> List<Result<(), u32>>,
        Leaf Step Long Free None,
        "They have lost these names, as by DROP_LINK; of each, nothing or an errno.";
    COUNT_USES 105 (id: ObjectId, word: u64, is_said: bool) -> List<u64>,
        Entry Harmless Brief Free None,
        "Controls are about to be declared, or were: the processes that map the file for writing. \
         The processes of the asked node that have it open have noted that at its home now.";
    BEGIN_SAYING 106 (id: ObjectId, word: u64) -> Option<List<u32>>,
        Leaf Harmless Brief Free None,
        "Controls are about to be declared: the nodes that have the file open. None: declared, nobody has it open.";
    END_SAYING 107 (id: ObjectId, word: u64) -> Option<Said>,
        Leaf Harmless Brief Free None,
        "Whether they were declared, who has the file open, and who maps it. None: it has to be begun again.";
    TOGETHER 108 (parent: ObjectId, name: Bytes, entry: Entry, other: ObjectId, with: Bytes, there: Entry) -> bool,
        Entry Harmless Brief Free None, "Whether the names are these entries, at one time.";
    DESCRIBE 109 (ids: List<ObjectId>) -> List<Result<Description, u32>>,
        Leaf Harmless Brief Free None,
        "What the first of these are and have, at least one, or an errno.";
    PLACES 110 (id: ObjectId, cuts: u64, chunk: u64, count: u64) -> List<(u64, Placed)>,
        Leaf Harmless Brief Looks None,
        "Of so many chunks from that one on, those on other nodes, and where (`placements.rs`).";
    PLACE 111 (id: ObjectId, cuts: u64, chunk: u64, end: u64) -> Chunk,
        Leaf Harmless Brief Changes None,
        "Where a chunk lies that is about to be written up to there.";
    ASSIGN 112 (id: ObjectId, cuts: u64, chunk: u64, placed: Placed, inline: Option<u64>) -> Placed,
        Leaf Step Brief Changes None,
        "That node has reserved the chunk, and what lay in the record is there; where it lies.";
    CREATE_THERE 113 (at: (ObjectId, Bytes), new: (u32, u32, u32, u64, Bytes), distribution: u8, controls: u64, epoch: u64, usage: Option<u64>, maker: Option<Maker>) -> Result<ObjectId, Entry>,
        Composite Once Long Free None,
        "As CREATE, but the object lies on the asked node, wherever the entry does: it has room.";
    RENEW 114 (ids: List<ObjectId>) -> List<u32>,
        Leaf Harmless Brief Free None,
        "How it stands with the asker's locks, which hold for another lease then (`leases.rs`).";
    NAMES_RMDIR 128 (parent: ObjectId, name: Bytes, epoch: u64) -> (),
        Names Once Long Free None, "Removes a directory.";
    NAMES_RENAME 129 (from: ObjectId, name: Bytes, to: ObjectId, new: Bytes, mode: RenameMode, epoch: u64) -> (),
        Names Once Long Free None, "Renames what is on paths.";
    NAMES_SET_ATTR 130 (id: ObjectId, set: SetAttr) -> (),
        Names Once Long Free None, "Sets attributes of what is on paths.";
    NAMES_UNLINK 131 (parent: ObjectId, name: Bytes, epoch: u64) -> (),
        Names Once Long Free None, "Removes a symbolic link.";
    USES 140 (ids: List<ObjectId>) -> List<u64>,
        Leaf Harmless Brief Free None,
        "Of each object of the asker: the number by which the asked node has it open; \
         0: not; all ones: it can't say just now.";
}
