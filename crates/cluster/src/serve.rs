//! Answers to other nodes: carries out on this node's store what they ask.
//!
//! A request becomes the call that a process of this node would make; no rule is implemented here.
//! What this module adds: it checks arguments and whether this node is the home, refuses nodes that
//! have lost their locks (`fences.rs`), and keeps what other nodes rely on: the files they have
//! open (`opened.rs`), the parts (`parts.rs`), their locks.
//!
//! Requests have classes ([`Class`]). A request may ask other nodes only for those of lower
//! classes, so that no circle of waiting nodes comes about. Requests of the lower classes don't
//! wait for other operations on names: they return EAGAIN, and the asking node asks again.

mod copy;
mod entries;
mod fences;
mod names;
mod opened;
mod parts;

pub use crate::peers::requests::Class;
pub use opened::BETWEEN_CHECKS;

use crate::Cluster;
use crate::peers::MAX_BODY;
use crate::peers::messages::{List, Record, Wire, decode, encode, kind};
use crate::peers::requests::{Repeat, Time, find};
use entries::composite;
use forebay_placement::NodeId;
use forebay_store::locks::{Owner, Request, Waits};
use forebay_store::record::Word;
use forebay_store::views::DeclaredControls;
use forebay_store::{Maker, ObjectId, Slot};
use opened::OpenThere;
use parts::Parts;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is told to who has asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The answer, encoded; at most [`crate::peers::MAX_HEAD`] bytes.
    pub head: Vec<u8>,
    /// Bytes that go with it; at most [`MAX_BODY`].
    pub body: Vec<u8>,
}

/// What this node keeps for others: the files they have open. Belongs to the daemon.
#[derive(Default)]
pub struct Server {
    open: Mutex<HashMap<(NodeId, ObjectId), OpenThere>>,
    parts: Parts,
    fences: fences::Fences,
    /// One at a time. True once [`Server::begin_names`] has ended what a daemon before left frozen.
    names: Mutex<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn told<T: Wire>(answer: T) -> Result<Reply, Errno> {
    Ok(Reply {
        head: encode(&answer),
        body: Vec::new(),
    })
}

/// What came of each of several.
fn told_each<T: Wire>(each: impl Iterator<Item = Result<T, Errno>>) -> Result<Reply, Errno> {
    let said = each.map(|one| one.map_err(|e| e.raw_os_error() as u32));
    told(List(said.collect::<Vec<_>>()))
}

fn parts<T: Wire>(head: &[u8]) -> Result<T, Errno> {
    decode(head).ok_or(Errno::PROTO)
}

impl Server {
    /// The class of a kind of question; None if there is no such kind.
    pub fn class(kind: u16) -> Option<Class> {
        find(kind).map(|request| request.class)
    }

    /// Whether a question of this kind may be carried out a second time, when nobody knows whether
    /// it was before its home's daemon was started anew.
    pub fn repeatable(kind: u16) -> bool {
        find(kind).is_some_and(|request| request.repeat != Repeat::Once)
    }

    /// Whether the home notes, where it outlives its daemon, that a question of this kind was
    /// carried out.
    pub fn recorded(kind: u16) -> bool {
        find(kind).is_none_or(|request| request.repeat != Repeat::Harmless)
    }

    /// Whether carrying out a question of this kind may take longer than programs wait for a node
    /// that doesn't answer ([`Time::Long`]).
    pub fn is_long(kind: u16) -> bool {
        find(kind).is_some_and(|request| request.time == Time::Long)
    }

    /// `node` gets an answer again that an earlier daemon gave: what that one kept for it in its
    /// own memory is kept again.
    pub fn answered_again(
        &self,
        store: &Cluster<'_>,
        node: NodeId,
        kind: u16,
        head: &[u8],
        answer: &[u8],
    ) {
        if kind == kind::CREATE {
            self.created_again(store, node, head, answer);
        }
    }

    /// On the node that changes names: ends what a daemon before this one, killed in the middle of
    /// a change of directories, has left frozen. Once; to be called until it succeeds.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be told.
    pub fn begin_names(&self, cluster: &Cluster<'_>) -> Result<(), Errno> {
        let mut begun = lock(&self.names);
        if !*begun && cluster.changes_names() {
            cluster.begin_names()?;
        }
        *begun = true;
        Ok(())
    }

    /// Carries out what `from` asks. May take as long as locks are held; may ask other nodes.
    ///
    /// # Errors
    /// Those of the operation; EPROTO for what isn't a question; ESTALE if the asker's names are
    /// older or newer than this node's; EREMCHG if this node isn't the home; EOWNERDEAD if the
    /// asker has lost its locks of the file.
    pub fn serve(
        &self,
        store: &Cluster<'_>,
        from: NodeId,
        kind: u16,
        head: &[u8],
        body: &[u8],
    ) -> Result<Reply, Errno> {
        let request = find(kind).ok_or(Errno::PROTO)?;
        let _passed = self.fences.pass(store, from, request, head)?;
        match request.class {
            Class::Leaf => self.leaf(&store.nonblocking(), from, kind, head, body),
            Class::Entry if kind == kind::CREATE => {
                self.create(&store.nonblocking(), from, head, false)
            }
            Class::Entry => composite(&store.nonblocking(), kind, head),
            Class::Composite if kind == kind::CREATE_THERE => self.create(store, from, head, true),
            Class::Composite => composite(store, kind, head),
            Class::Names => {
                let _one = lock(&self.names);
                names::serve(store, kind, head)
            }
            Class::Bulk if kind == kind::TO_FILES => self.to_files(store, head),
            Class::Bulk => self.copy(store, from, head),
        }
    }

    fn leaf(
        &self,
        store: &Cluster<'_>,
        from: NodeId,
        kind: u16,
        head: &[u8],
        body: &[u8],
    ) -> Result<Reply, Errno> {
        let cross_node = store.cross_node();
        match kind {
            kind::LOOKUP => {
                let (parent, name): (ObjectId, Vec<u8>) = parts(head)?;
                home_of_entry(store, parent, &name)?;
                told(store.lookup(parent, &name)?)
            }
            kind::LOOKUP_ALL => {
                let (parent, List(names)): (ObjectId, List<Vec<u8>>) = parts(head)?;
                let one = |name: &Vec<u8>| {
                    home_of_entry(store, parent, name)?;
                    store.lookup(parent, name)
                };
                told_each(names.iter().map(one))
            }
            kind::LOOKUP_STAT => {
                let (parent, name): (ObjectId, Vec<u8>) = parts(head)?;
                home_of_entry(store, parent, &name)?;
                let entry = store.lookup(parent, &name)?;
                let here = entry.filter(|e| store.object_away(e.id).is_none());
                // Gone already: who asks finds that out.
                let inode = here.and_then(|e| store.stat(e.id).ok());
                told((entry, inode.map(|i| Record(i, Vec::new()))))
            }
            kind::LOOKUP_OPEN => {
                let (parent, name, number): (ObjectId, Vec<u8>, u64) = parts(head)?;
                home_of_entry(store, parent, &name)?;
                let entry = store.lookup(parent, &name)?;
                let here = entry.filter(|e| store.object_away(e.id).is_none());
                let file = here.filter(|e| e.kind == libc::S_IFREG);
                // Gone already: who asks finds that out.
                let open = file.is_some_and(|e| self.open(store, from, e.id, number).is_ok());
                let inode = here.and_then(|e| store.stat(e.id).ok());
                told((entry, inode.map(|i| Record(i, Vec::new())), open))
            }
            kind::STAT => {
                let id = home(store, parts(head)?)?;
                let (inode, tail) = store.inode_tail(id)?;
                // A small file's content is no part of it.
                let tail = if inode.is_file() { Vec::new() } else { tail };
                told(Record(inode, tail))
            }
            kind::SET_ATTR => {
                let (id, set) = parts(head)?;
                told(store.names().set_attr_here(home(store, id)?, &set)?)
            }
            kind::ATTRIBUTE => {
                let (id, name): (_, Vec<u8>) = parts(head)?;
                check_attribute(&name)?;
                let body = store.attribute(home(store, id)?, &name)?;
                Ok(Reply {
                    head: encode(&()),
                    body,
                })
            }
            kind::ATTRIBUTES => told(List(store.attributes(home(store, parts(head)?)?)?)),
            kind::SET_ATTRIBUTE => {
                type Question = (ObjectId, Vec<u8>, Option<bool>, Option<(ObjectId, Vec<u8>)>);
                let (id, name, create, known): Question = parts(head)?;
                check_attribute(&name)?;
                let known = known.as_ref().map(|k| (k.0, &k.1[..]));
                let known = known.filter(|k| check_name(k.1).is_ok());
                let id = home(store, id)?;
                told(store.set_attribute(id, &name, body, create, known)?)
            }
            kind::REMOVE_ATTRIBUTE => {
                let (id, name): (_, Vec<u8>) = parts(head)?;
                check_attribute(&name)?;
                told(store.remove_attribute(home(store, id)?, &name)?)
            }
            kind::LIST => {
                let (dir, shard, after) = parts(head)?;
                let (list, shard, end) = store.list_part(dir, shard, after)?;
                Ok(Reply {
                    head: encode(&(shard, end)),
                    body: encode(&list),
                })
            }
            kind::READ => {
                let (id, offset, len): (_, u64, u64) = parts(head)?;
                let len = usize::try_from(len)
                    .map_err(|_| Errno::PROTO)?
                    .min(MAX_BODY);
                let body = with_file(store, id, |live| {
                    let mut body: Vec<u8> = Vec::with_capacity(len);
                    // SAFETY: the vector has room for so many bytes; as many are then there.
                    unsafe {
                        let n = store
                            .content()
                            .read_here(live, offset, body.as_mut_ptr(), len)?;
                        body.set_len(n);
                    }
                    // Looked at afterwards: what is on other nodes by now may have been within the
                    // size.
                    store.parts().not_spilled(live)?;
                    Ok(body)
                })?;
                Ok(Reply {
                    head: encode(&()),
                    body,
                })
            }
            kind::WRITE => {
                let (id, offset): (_, Option<u64>) = parts(head)?;
                let (at, n) = with_file_in_room(store, id, |live| {
                    // SAFETY: the slice is readable.
                    store.recovery().with_room_of_the_dead(|| unsafe {
                        let bytes = (body.as_ptr(), body.len());
                        store
                            .content()
                            .write_here(live, offset, bytes, true, |live| {
                                live.change_by(Some(from));
                                store.parts().may_write(live, offset, body.len())
                            })
                    })
                })?;
                told((at, n as u64))
            }
            kind::WRITE_PIECES => {
                let (id, List(list)): (_, List<(u64, u32)>) = parts(head)?;
                told(with_file_in_room(store, id, |live| {
                    store.write_pieces_here(live, from, &list, body)
                })?)
            }
            kind::TRUNCATE => {
                let (id, size) = parts(head)?;
                told(with_file(store, id, |live| {
                    store
                        .content()
                        .truncate_here(live, |live| store.parts().may_cut(live, size))
                })?)
            }
            kind::RESERVE => {
                let (id, at, len, grow) = parts(head)?;
                told(with_file_in_room(store, id, |live| {
                    store.parts().not_spilled(live)?;
                    store
                        .recovery()
                        .with_room_of_the_dead(|| store.content().reserve_here(live, at, len, grow))
                })?)
            }
            kind::PUNCH => {
                let (id, at, len, grow) = parts(head)?;
                told(with_file(store, id, |live| {
                    store.parts().not_spilled(live)?;
                    store.content().punch_here(live, at, len, grow)
                })?)
            }
            kind::SEEK => {
                let (id, offset, hole) = parts(head)?;
                told(with_file(store, id, |live| {
                    let found = store.content().seek_here(live, offset, hole);
                    store.parts().not_spilled(live)?;
                    found
                })?)
            }
            kind::SYNC => told(with_file(store, parts(head)?, |live| {
                store.parts().not_spilled(live)?;
                store.durability().sync_here(live)
            })?),
            kind::OPEN => {
                let (id, number) = parts(head)?;
                // It has no use of the file now: who had it open there has closed it.
                self.fences.lift(store, from, home(store, id)?)?;
                self.open(store, from, id, number)?;
                told(Record(store.stat(id)?, Vec::new()))
            }
            kind::REOPEN => {
                let (id, number) = parts(head)?;
                told(self.open(store, from, id, number)?)
            }
            kind::CLOSE => {
                let (id, number) = parts(head)?;
                told(self.close(store, from, id, number)?)
            }
            kind::TOUCH => {
                let (dir, t) = parts(head)?;
                told(store.names().note_dir_time(home(store, dir)?, t)?)
            }
            kind::DIR_LINKS => {
                let (dir, difference) = parts(head)?;
                told(cross_node.add_dir_links(home(store, dir)?, difference)?)
            }
            kind::EPOCH => {
                let () = parts(head)?;
                told(store.names().names_epoch())
            }
            kind::FREEZE => {
                let (epoch, dir) = parts(head)?;
                told(store.intents().freeze(epoch, dir)?)
            }
            kind::THAW => {
                store.intents().thaw(parts(head)?);
                told(())
            }
            kind::ADD_LINK => {
                let (id, dir, name, from, old): (_, _, Vec<u8>, _, Vec<u8>) = parts(head)?;
                check_name(&name)?;
                check_name(&old)?;
                told(cross_node.add_link(home(store, id)?, (dir, &name), (from, &old))?)
            }
            kind::OFFERED => {
                let (id, dir, name): (_, _, Vec<u8>) = parts(head)?;
                check_name(&name)?;
                told(cross_node.offered(home(store, id)?, (dir, &name))?)
            }
            kind::RELEASE => {
                let (dir, name, entry, stays): (_, Vec<u8>, _, _) = parts(head)?;
                home_of_entry(store, dir, &name)?;
                told(cross_node.release_entry((dir, &name), entry, stays)?)
            }
            kind::EXCHANGE_LINK => {
                let (id, dir, name, from, old, number): (_, _, Vec<u8>, _, Vec<u8>, _) =
                    parts(head)?;
                check_name(&name)?;
                check_name(&old)?;
                let (new, old) = ((dir, &name[..]), (from, &old[..]));
                told(cross_node.exchange_link(home(store, id)?, new, old, number)?)
            }
            kind::END_EXCHANGE_LINK => {
                let (id, dir, name, number): (_, _, Vec<u8>, _) = parts(head)?;
                check_name(&name)?;
                told(cross_node.end_exchange_link(home(store, id)?, (dir, &name), number)?)
            }
            kind::END_EXCHANGE => {
                let (dir, name, number, done): (_, Vec<u8>, _, _) = parts(head)?;
                home_of_entry(store, dir, &name)?;
                told(cross_node.end_exchange((dir, &name), number, done)?)
            }
            kind::EXCHANGE_STANDS => {
                let (dir, name, number): (_, Vec<u8>, _) = parts(head)?;
                home_of_entry(store, dir, &name)?;
                told(cross_node.exchange_stands(((dir, &name), number))?)
            }
            kind::UNDO_LINK => {
                let (id, dir, name, from): (_, _, Vec<u8>, _) = parts(head)?;
                check_name(&name)?;
                told(cross_node.undo_link(home(store, id)?, (dir, &name), from)?)
            }
            kind::DROP_LINKS => {
                let (dir, List(files)): (ObjectId, List<(ObjectId, Vec<u8>)>) = parts(head)?;
                let one = |(id, name): &(ObjectId, Vec<u8>)| {
                    check_name(name)?;
                    cross_node.lose_name(home(store, *id)?, (dir, name), None, false)
                };
                told_each(files.iter().map(one))
            }
            kind::DROP_LINK => {
                type Question = (
                    ObjectId,
                    ObjectId,
                    Vec<u8>,
                    Option<(ObjectId, Vec<u8>)>,
                    bool,
                );
                let (id, dir, name, new, again): Question = parts(head)?;
                check_name(&name)?;
                new.as_ref().map_or(Ok(()), |n| check_name(&n.1))?;
                let new = new.as_ref().map(|n| (n.0, &n.1[..]));
                told(cross_node.lose_name(home(store, id)?, (dir, &name), new, again)?)
            }
            kind::HAS_LINK => {
                let (id, dir, name): (_, _, Vec<u8>) = parts(head)?;
                check_name(&name)?;
                told(cross_node.has_coming(home(store, id)?, (dir, &name))?)
            }
            kind::LOCK => {
                let request = lock_request(store, from, head)?;
                told(store.locks().lock_now(&request)?)
            }
            kind::LOCK_TEST => {
                let request = lock_request(store, from, head)?;
                told(store.locks().lock_in_the_way(&request)?)
            }
            kind::END_LOCKS => {
                let (id, owner): (_, Owner) = parts(head)?;
                let owner = Owner {
                    node: from,
                    ..owner
                };
                store.locks().locks_of(home(store, id)?)?.remove(owner);
                told(())
            }
            kind::LAMINATE => told(store.declared().laminate_here(home(store, parts(head)?)?)?),
            kind::SEAL => {
                let (id, lease, cuts) = parts(head)?;
                told(
                    store
                        .declared()
                        .seal_here(home(store, id)?, (lease, cuts))?,
                )
            }
            kind::BEGIN_SAYING => {
                let (id, word) = parts(head)?;
                let (id, word) = (home(store, id)?, checked(word)?);
                told(store.declared().begin_saying_here(id, word)?.map(List))
            }
            kind::END_SAYING => {
                let (id, word) = parts(head)?;
                let (id, word) = (home(store, id)?, checked(word)?);
                told(store.declared().end_saying_here(id, word)?)
            }
            kind::COPIED => {
                let List(asked): List<(ObjectId, u64)> = parts(head)?;
                let stand = asked.iter().map(|&(id, edition)| {
                    home(store, id)?;
                    store.local_copies().stands(id, edition)
                });
                told(List(stand.collect::<Result<Vec<bool>, Errno>>()?))
            }
            kind::MAKERS => {
                let List(makers): List<Maker> = parts(head)?;
                told(List(DeclaredControls::makers_run(&makers)))
            }
            kind::BLOCKERS => {
                let request: Request = parts(head)?;
                home(store, request.object)?;
                told(List(
                    store.locks().locks_of(request.object)?.blockers(&request),
                ))
            }
            kind::WAITS => told(Waits(store.locks().waits_here(parts(head)?))),
            kind::HOLDS => {
                let List(asked): List<(ObjectId, Owner)> = parts(head)?;
                let holds = asked
                    .iter()
                    .map(|&(id, owner)| store.locks().holds(id, owner));
                told(List(holds.collect::<Result<Vec<bool>, Errno>>()?))
            }
            kind::RENEW => {
                let List(ids): List<ObjectId> = parts(head)?;
                for &id in &ids {
                    home(store, id)?;
                }
                let standing = self.fences.renew(store, from, &ids);
                told(List(standing.iter().map(|s| s.code()).collect::<Vec<_>>()))
            }
            kind::USES => {
                let List(ids): List<ObjectId> = parts(head)?;
                let uses = ids.iter().map(|&id| store.names().use_of(id));
                told(List(uses.collect::<Result<Vec<u64>, Errno>>()?))
            }
            kind::SYNC_RECORDS => {
                let () = parts(head)?;
                told(store.durability().sync_entries()?)
            }
            kind::SYNC_ALL => {
                let () = parts(head)?;
                told(store.durability().sync_all()?)
            }
            kind::SEARCH => {
                let (words, from, only, most): (List<Word>, _, _, _) = parts(head)?;
                told(store.index().search_part(&words.0, from, only, most)?)
            }
            kind::WRITTEN => {
                let (of, from, most) = parts(head)?;
                told(store.index().written_part(of, from, most)?)
            }
            kind::FIND => told(store.index().matching_part(head)?),
            kind::INDEXED_NAME => told(store.indexed_name(home(store, parts(head)?)?)?),
            kind::DESCRIBE => told(store.described_part(head)?),
            kind::LAYOUT..=kind::LIVES
            | kind::MERGE
            | kind::LANDED
            | kind::PART_ON_FILES
            | kind::PLACES
            | kind::PLACE
            | kind::ASSIGN => self.parts.serve(store, from, kind, head, body),
            _ => Err(Errno::PROTO),
        }
    }
}

/// EREMCHG if the object lies elsewhere.
fn home(store: &Cluster<'_>, id: ObjectId) -> Result<ObjectId, Errno> {
    match store.object_away(id) {
        // That is none that others ask for.
        _ if id.is_part() || id.is_view() => Err(Errno::PROTO),
        None => Ok(id),
        Some(_) => Err(Errno::REMCHG),
    }
}

/// What can be said of a file.
fn checked(word: u64) -> Result<u64, Errno> {
    forebay_store::controls::checked(word).ok_or(Errno::PROTO)
}

/// What another node asks for its own.
fn lock_request(store: &Cluster<'_>, from: NodeId, head: &[u8]) -> Result<Request, Errno> {
    let mut request: Request = parts(head)?;
    request.owner.node = from;
    home(store, request.object)?;
    Ok(request)
}

fn home_of_entry(store: &Cluster<'_>, dir: ObjectId, name: &[u8]) -> Result<(), Errno> {
    check_name(name)?;
    match store.away(Slot::of_entry(dir, name)) {
        None => Ok(()),
        Some(_) => Err(Errno::REMCHG),
    }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        // No path: a name that leads elsewhere would do so wherever it is staged to.
        b"." | b".." => Err(Errno::PROTO),
        _ if name.contains(&b'/') => Err(Errno::PROTO),
        _ if (1..=forebay_store::NAME_MAX).contains(&name.len()) => Ok(()),
        _ => Err(Errno::PROTO),
    }
}

/// As [`check_name`], of an extended attribute: any bytes.
fn check_attribute(name: &[u8]) -> Result<(), Errno> {
    match (1..=forebay_store::NAME_MAX).contains(&name.len()) {
        true => Ok(()),
        false => Err(Errno::PROTO),
    }
}

fn with_file<T>(
    store: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(u32) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let acquired = store.live_acquire_held(home(store, id)?);
    let (live, held) = acquired.map_err(|e| match e {
        // Who asks has it open. This node has lost it, by a death.
        Errno::NOENT => Errno::STALE,
        e => e,
    })?;
    let result = f(live);
    drop(held);
    store.objects().live_release(live).and(result)
}

/// As [`with_file`], of a change that needs room. EXFULL: there is none, and the file may grow on
/// other nodes.
fn with_file_in_room<T>(
    store: &Cluster<'_>,
    id: ObjectId,
    f: impl FnOnce(u32) -> Result<T, Errno>,
) -> Result<T, Errno> {
    with_file(store, id, |live| match f(live) {
        Err(Errno::NOSPC) if store.parts().spill_here(live)? => Err(forebay_store::parts::CHANGED),
        done => done,
    })
}
