//! What nodes say to each other about their stores, as bytes.
//!
//! A question is a [`kind`] and its arguments, an answer the results: both the parts of a tuple, one
//! after the other, numbers little-endian, texts behind their length (4 bytes), what may be absent
//! behind a byte 0 or 1. Decoding accepts any bytes: what isn't a message is None.

pub use forebay_store::codec::*;

/// The kinds of questions: `arguments -> answer`. Numbers are never used again for another kind.
pub mod kind {
    /// `parent, name -> Option<Entry>`
    pub const LOOKUP: u16 = 1;
    /// `id -> inode record`
    pub const STAT: u16 = 2;
    /// `id, SetAttr`
    pub const SET_ATTR: u16 = 3;
    /// `id, name -> value`
    pub const ATTRIBUTE: u16 = 4;
    /// `id -> names`
    pub const ATTRIBUTES: u16 = 5;
    /// `id, name, Option<must be new>, Option<parent, name of the object>` and the value
    pub const SET_ATTRIBUTE: u16 = 45;
    /// `id, name`
    pub const REMOVE_ATTRIBUTE: u16 = 7;
    /// `dir, shard, after -> entries, shard, end`
    pub const LIST: u16 = 8;
    /// `id, offset, length`, and bytes come back
    pub const READ: u16 = 9;
    /// `id, Option<offset>` and bytes `-> offset, written`
    pub const WRITE: u16 = 10;
    /// `id, size`
    pub const TRUNCATE: u16 = 11;
    /// `id, offset, length, grow`
    pub const RESERVE: u16 = 12;
    /// `id, offset, length, grow`
    pub const PUNCH: u16 = 13;
    /// `id, offset, hole -> offset`
    pub const SEEK: u16 = 14;
    /// `id`
    pub const SYNC: u16 = 15;
    /// `id, use -> inode record`: a file is open on the asking node, which knows this use of it by a
    /// number
    pub const OPEN: u16 = 16;
    /// `id, use`: no longer
    pub const CLOSE: u16 = 17;
    /// `id, use`: as OPEN, if the home doesn't know it any more
    pub const REOPEN: u16 = 32;
    /// `parent, name, use -> Option<Entry>, inode record if it is there, too, whether it is open now`: as
    /// LOOKUP_STAT, and as OPEN if it is a file that is there
    pub const LOOKUP_OPEN: u16 = 37;
    /// `id, parent, name -> Option<it counts>`: what has become of a link
    pub const OFFERED: u16 = 34;
    /// `parent, name, Entry, stays`: of a held entry
    pub const RELEASE: u16 = 35;
    /// `id, parent, name, other parent, name, exchange`: as ADD_LINK, by an exchange
    pub const EXCHANGE_LINK: u16 = 38;
    /// `id, parent, name, exchange`: it doesn't get this name after all
    pub const END_EXCHANGE_LINK: u16 = 39;
    /// `parent, name, exchange, done`: of a name that has joined it
    pub const END_EXCHANGE: u16 = 43;
    /// `parent, name, exchange -> it is under way`: of the name that leads it
    pub const EXCHANGE_STANDS: u16 = 44;
    /// Makes all records durable, as far as the node can
    pub const SYNC_RECORDS: u16 = 36;
    /// `parent, name -> Option<Entry>, inode record if it is there, too`
    pub const LOOKUP_STAT: u16 = 33;
    /// `dir, time`: an entry of it was made or removed
    pub const TOUCH: u16 = 18;
    /// `dir, difference`: directories were made or removed in it
    pub const DIR_LINKS: u16 = 19;
    /// `-> epoch of names`
    pub const EPOCH: u16 = 20;
    /// `epoch, dir -> it has entries here`: names are about to change; nothing new in `dir`
    pub const FREEZE: u16 = 21;
    /// `epoch`: they have
    pub const THAW: u16 = 22;
    /// `id, parent, name, other parent, name`: it is about to get this name instead of the other
    pub const ADD_LINK: u16 = 23;
    /// `id, parent, name, slot of the other name`: it doesn't get this name after all
    pub const UNDO_LINK: u16 = 24;
    /// `id, parent, name, Option<new parent, name>, whether that may be done already`: it has lost this
    /// name
    pub const DROP_LINK: u16 = 25;
    /// `id, parent, name -> it is still to get it`
    pub const HAS_LINK: u16 = 26;
    /// `request -> Option<what is in the way>`: a lock
    pub const LOCK: u16 = 28;
    /// `id, owner`: it gives up all its locks of the object
    pub const END_LOCKS: u16 = 29;
    /// `request -> Option<what is in the way>`: only asks
    pub const LOCK_TEST: u16 = 27;
    /// `request -> owners`: the processes that are in the way
    pub const BLOCKERS: u16 = 40;
    /// `owner -> what it waits for`: a process of the asked node
    pub const WAITS: u16 = 41;
    /// `ids and owners of the asked node -> whether each may have locks there`
    pub const HOLDS: u16 = 42;
    /// `[id] -> [Standing]`: how it stands with the asker's locks, which hold for another lease then
    /// (`leases.rs`)
    pub const RENEW: u16 = 114;
    /// `ids of the asking node -> of each, by what number the asked node has it open; 0: not; all
    /// ones: it can't say just now`
    pub const USES: u16 = 140;
    /// `-> `: writes all to stable storage
    pub const SYNC_ALL: u16 = 31;

    /// `id, Option<cuts>, offset` and runs (`merge.rs`) `-> Option<start, end, Option<node>>`: what a mapping on another node has
    /// changed, of a file or of a part of it; and which of these bytes somebody else had changed, on that node
    pub const MERGE: u16 = 85;

    // Of striped files: see `striped.rs`. What is no longer so as the question says: EXFULL.

    /// `id, it will write to parts -> size, cuts, appends, what was said of it`
    pub const LAYOUT: u16 = 48;
    /// `id, cuts, appends, end`: it is written that far
    pub const GROW: u16 = 49;
    /// `id, identity, Option<lease to be taken over> -> Lease or who has it`
    pub const LEASE: u16 = 50;
    /// `id, lease, cuts, appends, Option<size> -> it was still ours`
    pub const END_LEASE: u16 = 51;
    /// `id, cuts, offset, length`, and bytes come back: those of a part
    pub const READ_PART: u16 = 52;
    /// `id, cuts, offset` and bytes `-> written`: to a part, or the home
    pub const WRITE_PART: u16 = 53;
    /// `id, cuts, size`: it is cut there
    pub const CUT_PART: u16 = 54;
    /// `id -> Option<inode record>`
    pub const STAT_PART: u16 = 55;
    /// `id`
    pub const SYNC_PART: u16 = 56;
    /// `id, cuts, offset, length, punch`
    pub const ROOM_PART: u16 = 57;
    /// `id`: it came in a burst, and its part is to be moved from memory (`data/drain.rs`)
    pub const LANDED: u16 = 93;
    /// `id, on`: the bytes of its part, which is made if there is none, lie on `files` media from now on, or may lie anywhere (`data/on_files.rs`)
    pub const PART_ON_FILES: u16 = 99;
    /// `id, chunk -> Option<chunk>`: from this chunk on, what the node has of it in memory is moved to `files` media; where to go on
    pub const TO_FILES: u16 = 100;
    /// `id`: the file is gone
    pub const DROP_PART: u16 = 58;
    /// `identity -> it lives`: a process of the asked node
    pub const LIVES: u16 = 59;

    // Of files that have grown on other nodes: see `striped/placed.rs`.

    /// `id, cuts, chunk, count -> (chunk, where it lies)...`: of so many chunks from that one on,
    /// those on other nodes
    pub const PLACES: u16 = 110;
    /// `id, cuts, chunk, end -> where it lies, or nowhere`: it is about to be written up to there
    pub const PLACE: u16 = 111;
    /// `id, cuts, chunk, where, Option<length> -> where it lies`: that node has reserved it; what
    /// lay in the record is there
    pub const ASSIGN: u16 = 112;

    // Of the index of attributes: see `index.rs`.

    /// `words, place, Option<hash of the name>, how many -> objects that have them, next place`
    pub const SEARCH: u16 = 61;
    /// `Option<key>, hash, how many -> keys or values, next hash`
    pub const WRITTEN: u16 = 62;
    /// `id -> parent, name`: by which it is in the index
    pub const INDEXED_NAME: u16 = 63;

    /// `ids -> of the first of them, at least one, what they are and have, or an errno` (`index/find.rs`)
    pub const DESCRIBE: u16 = 109;
    /// `dir, place, terms -> objects in it for which they hold, next place` (`index/find.rs`)
    pub const FIND: u16 = 87;

    /// `id`: who had it open for writing has closed it; EXFULL: SEAL has to do it
    pub const LAMINATE: u16 = 46;

    /// `ids and editions -> of each, whether that is the file's, which is there`: a node has copies of them
    pub const COPIED: u16 = 77;

    /// `parent, name, NewObject, distribution, controls, epoch, Option<use>, Option<maker> -> id or what is there`
    pub const CREATE: u16 = 64;
    /// As CREATE, but the object lies on the asked node, wherever the entry does: it has room
    pub const CREATE_THERE: u16 = 113;
    /// `parent, name, Entry, held, epoch -> Option<what is there>`
    pub const INSERT: u16 = 65;
    /// `parent, (name, Entry)..., epoch -> of each, what is there, or an errno`
    pub const INSERT_ALL: u16 = 98;
    /// `parent, names -> of each, Option<Entry>, or an errno`
    pub const LOOKUP_ALL: u16 = 102;
    /// `parent, (name, Entry)..., epoch -> of each, whether it was that and is gone, or an errno`: of files
    pub const REMOVE_ALL: u16 = 103;
    /// `parent, (id, name)... -> of each, nothing, or an errno`: they have lost these names, as by DROP_LINK
    pub const DROP_LINKS: u16 = 104;
    /// `parent, name, epoch`
    pub const UNLINK: u16 = 66;
    /// `id, parent, name, epoch`
    pub const LINK: u16 = 67;
    /// `(from, name), (to, name), mode, names may change: which directory may be replaced, epoch`; EREMOTE: that mustn't
    pub const RENAME: u16 = 68;
    /// `parent, name, Entry, mode, as for RENAME, epoch -> what became of it`
    pub const REPLACE: u16 = 69;
    /// `parent, name, Entry, parent, name, Entry -> the names are these entries, at one time`
    pub const TOGETHER: u16 = 108;
    /// `parent, name`: a directory, empty and frozen
    pub const REMOVE_DIR: u16 = 70;
    /// `(parent, name), Entry, (leading parent, name), exchange, names, epoch -> Option<Entry>`: the name joins an
    /// exchange, which brings it this entry
    pub const JOIN_EXCHANGE: u16 = 71;
    /// `parent, name, parent, name, names, epoch`: the first one leads
    pub const EXCHANGE: u16 = 72;

    /// `id, (offset, length)...` and their bytes, one after the other: writes that were kept back, in their order
    pub const WRITE_PIECES: u16 = 73;

    /// `makers -> of each, whether it runs`: processes of the asked node (`makers.rs`)
    pub const MAKERS: u16 = 90;
    /// `parent, name, Entry, epoch -> it was that`: of a file whose maker has ended
    pub const UNLINK_FROM: u16 = 91;
    /// `id, lease, cuts -> it is laminated, and the lease is given back`: as LAMINATE, all parts being cut
    pub const SEAL: u16 = 92;
    /// `id, word, it was -> processes that map it for writing`: the word is about to be said of a file, or was; who has it open on the asked node has
    /// noted that at its home now (`uses/say.rs`)
    pub const COUNT_USES: u16 = 105;
    /// `id, word -> Option<nodes that have it open>`: the word is about to be said of a file; None: it was said, nobody has it open
    pub const BEGIN_SAYING: u16 = 106;
    /// `id, word -> Option<whether it was said, and who has it open, who maps it>`; None: it has to be begun again
    pub const END_SAYING: u16 = 107;
    /// `source, id, Option<cuts>, (from offset, to offset, length)... -> copied`: as writes of what lies in the source, to a file, or to what the
    /// node has of a striped one; of some first bytes of them, at least one. ENODATA: there are none
    pub const COPY: u16 = 94;

    /// `parent, name, epoch`
    pub const NAMES_RMDIR: u16 = 128;
    /// `from, name, to, name, mode, epoch`
    pub const NAMES_RENAME: u16 = 129;
    /// `id, SetAttr`
    pub const NAMES_SET_ATTR: u16 = 130;
    /// `parent, name, epoch`
    pub const NAMES_UNLINK: u16 = 131;
}
