//! Batches: operations that are collected, started, and run while the program does something else.
//!
//! The caller declares the order. [`Order::Free`]: any order, except that operations on a
//! collection which the batch opens wait for the open, and that a close waits for all earlier
//! operations on its collection. [`Order::Chain`]: one operation after the other. [`Batch::after`]:
//! an operation waits for named earlier operations, and is skipped if one of them fails.
//!
//! [`Failure`] decides what a failure does. `stop`: operations that haven't begun are skipped.
//! `continue`: all operations run that don't need a failed one. `rollback`: as `stop`, and finished
//! operations are undone (see [`crate::undo`]); the same happens if the batch is cancelled. Other
//! processes see the effects of such a batch while it runs, except deletions, which are done at its
//! end. If other processes write to the same chunks meanwhile, undoing the batch loses their
//! writes.
//!
//! Buffers passed to a batch must stay valid and unused until the batch has ended.

mod run;

use crate::meta::{Change, Key, Record};
use crate::model::{Collection, Log, NewCollection, Options, Workspace};
use crate::{Error, Meta, Predicate, Result, Session, Uuid};
use forebay_controls::Failure;
use std::collections::HashMap;

pub use run::{Running, Status};

/// Maximum number of operations of a batch.
pub const OPERATIONS_MAX: usize = 1 << 18;

/// The name of [`Batch::close`]'s operation, in messages and to recognise closes.
const CLOSE: &str = "close";
const CREATE: &str = "create";
const DELETE: &str = "delete";

/// The order in which the operations of a batch run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// In any order.
    #[default]
    Free,
    /// Operations are carried out one after another, in the order of their addition.
    Chain,
}

/// An operation of a batch, by its number, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op(pub u32);

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// The number of bytes read or copied; the offset of an append.
    Number(u64),
    /// The bytes read.
    Bytes(Vec<u8>),
    /// The metadata read.
    Meta(Meta),
    /// The record found.
    Record(Record),
    /// The records found.
    Records(Vec<Record>),
}

/// How an operation is carried out.
enum Work {
    /// By itself.
    Alone(Box<dyn FnOnce(Log<'_>) -> Result<Outcome> + Send>),
    /// Creates a collection. The batch may join this with other creations.
    Create(NewCollection),
    /// Deletes a collection. The batch may join this with other deletions.
    Delete(Workspace, OwnKey),
}

/// The kind and the workspace of an operation. Operations of one group can be carried out together.
type Group = (&'static str, Uuid);

impl Work {
    fn run(self, log: Log<'_>) -> Result<Outcome> {
        match self {
            Work::Alone(work) => work(log),
            Work::Create(new) => {
                let made = new.collection.fill_new(&new.name, &new.options, log);
                made.map(|()| Outcome::Done)
            }
            Work::Delete(workspace, key) => {
                let deleted = Collection::delete_logged(&workspace, key.as_key(), log);
                deleted.map(|()| Outcome::Done)
            }
        }
    }

    /// Returns the operation's group; None if the operation can't be joined with others.
    fn group(&self, session: &Session) -> Option<Group> {
        match self {
            Work::Create(new) => Some((CREATE, new.collection.workspace().uuid())),
            Work::Delete(workspace, _) if session.store().removes_together() => {
                Some((DELETE, workspace.uuid()))
            }
            _ => None,
        }
    }

    /// Carries out operations of one group together.
    fn run_all(all: Vec<Work>, log: Log<'_>) -> Vec<Result<()>> {
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        for work in all {
            match work {
                Work::Create(one) => new.push(one),
                Work::Delete(workspace, key) => gone.push((workspace, key)),
                // An `Alone` operation is in no group.
                Work::Alone(_) => {}
            }
        }
        match gone.first() {
            None => Collection::fill_all(&new, log),
            Some((workspace, _)) => {
                let keys: Vec<Key<'_>> = gone.iter().map(|(_, key)| key.as_key()).collect();
                Collection::delete_all_logged(workspace, &keys, log)
            }
        }
    }
}

/// A dependency of a waiting operation on an awaited one. `on`: the number of the awaited
/// operation, or in `Inner::waiters` that of the waiting one. `needs`: whether the waiting
/// operation is skipped if the awaited one fails.
#[derive(Clone, Copy, Debug)]
struct Edge {
    on: u32,
    needs: bool,
}

struct Planned {
    /// The operation's name in messages.
    what: &'static str,
    work: Work,
    after: Vec<Edge>,
}

/// How the batch has used a collection so far.
#[derive(Default)]
struct Use {
    /// The last operation that opens or closes the collection.
    last: Option<Edge>,
    /// Later operations that use the collection.
    users: Vec<u32>,
}

/// A batch that is being collected.
pub struct Batch {
    session: Session,
    failure: Failure,
    order: Order,
    operations: Vec<Planned>,
    uses: HashMap<usize, Use>,
}

/// A collection, and how an operation uses it.
pub(crate) enum Touch<'a> {
    Opens(&'a Collection),
    Uses(&'a Collection),
    Closes(&'a Collection),
}

impl Batch {
    /// Returns an empty batch.
    pub fn new(session: &Session, failure: Failure, order: Order) -> Batch {
        Batch {
            session: session.clone(),
            failure,
            order,
            operations: Vec::new(),
            uses: HashMap::new(),
        }
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Adds an operation.
    pub(crate) fn add(
        &mut self,
        what: &'static str,
        touches: &[Touch<'_>],
        work: impl FnOnce(Log<'_>) -> Result<Outcome> + Send + 'static,
    ) -> Result<Op> {
        self.add_work(what, touches, Work::Alone(Box::new(work)))
    }

    fn add_work(&mut self, what: &'static str, touches: &[Touch<'_>], work: Work) -> Result<Op> {
        let number = self.operations.len() as u32;
        if self.operations.len() >= OPERATIONS_MAX {
            return Err(Error::new(
                rustix::io::Errno::TOOBIG,
                format!("a batch can have {OPERATIONS_MAX} operations; start another one"),
            ));
        }
        let mut after = Vec::new();
        if let (Order::Chain, Some(on)) = (self.order, number.checked_sub(1)) {
            after.push(Edge { on, needs: false });
        }
        for touch in touches {
            let (Touch::Opens(c) | Touch::Uses(c) | Touch::Closes(c)) = touch;
            let known = self.uses.entry(c.identity()).or_default();
            match touch {
                Touch::Opens(_) => {
                    known.last = Some(Edge {
                        on: number,
                        needs: true,
                    });
                }
                Touch::Uses(_) => {
                    after.extend(known.last);
                    known.users.push(number);
                }
                Touch::Closes(_) => {
                    after.extend(known.last);
                    let users = known.users.drain(..);
                    after.extend(users.map(|on| Edge { on, needs: false }));
                    // Later operations wait for the close, then fail as the collection is closed.
                    known.last = Some(Edge {
                        on: number,
                        needs: false,
                    });
                }
            }
        }
        self.operations.push(Planned { what, work, after });
        Ok(Op(number))
    }

    /// Makes `op` wait for the operations `needed`, which were added before `op`. If one of them
    /// fails, `op` is skipped.
    ///
    /// # Errors
    /// EINVAL unless `op` and `needed` are in this batch, and `op` comes after all of `needed`.
    pub fn after(&mut self, op: Op, needed: &[Op]) -> Result<()> {
        let known = self.operations.len();
        let operation = self.operations.get_mut(op.0 as usize);
        let operation = operation.ok_or_else(|| {
            Error::invalid(format!(
                "there is no operation {} in this batch of {known}",
                op.0
            ))
        })?;
        if let Some(late) = needed.iter().find(|needed| needed.0 >= op.0) {
            return Err(Error::invalid(format!(
                "operation {} can't wait for {}: only for operations before it",
                op.0, late.0
            )));
        }
        let edges = needed.iter().map(|n| Edge {
            on: n.0,
            needs: true,
        });
        operation.after.extend(edges);
        Ok(())
    }

    /// Starts the batch. If the start fails, no operation has been carried out.
    ///
    /// # Errors
    /// EPERM in a forked child; EAGAIN if too many operations are in progress; the errors of
    /// starting a thread, or of creating the undo log of a `rollback` batch.
    pub fn start(self) -> Result<Running> {
        self.session.check()?;
        Running::start(self)
    }
}

/// The verbs. Each adds an operation and returns its number.
///
/// # Errors
/// E2BIG if the batch is full.
impl Batch {
    /// Adds [`Collection::create`]. Later operations of this batch can use the collection; other
    /// code can do so only after this operation has ended.
    pub fn create(
        &mut self,
        workspace: &Workspace,
        name: &str,
        options: Options,
    ) -> Result<(Op, Collection)> {
        let new = Collection::pending(workspace);
        let work = Work::Create(NewCollection {
            collection: new.clone(),
            name: name.to_owned(),
            options,
        });
        let op = self.add_work(CREATE, &[Touch::Opens(&new)], work)?;
        Ok((op, new))
    }

    /// Adds [`Collection::open`]. Later operations of this batch can use the collection.
    pub fn open(&mut self, workspace: &Workspace, key: Key<'_>) -> Result<(Op, Collection)> {
        let opened = Collection::pending(workspace);
        let (open, key) = (opened.clone(), OwnKey::of(key));
        let op = self.add("open", &[Touch::Opens(&opened)], move |_| {
            open.fill(key.as_key()).map(|()| Outcome::Done)
        })?;
        Ok((op, opened))
    }

    /// Adds [`Collection::lookup`], whose outcome is a record.
    pub fn lookup(&mut self, workspace: &Workspace, key: Key<'_>) -> Result<Op> {
        let (workspace, key) = (workspace.clone(), OwnKey::of(key));
        self.add("lookup", &[], move |_| {
            Collection::lookup(&workspace, key.as_key()).map(Outcome::Record)
        })
    }

    /// Adds [`Collection::search`], whose outcome is records.
    pub fn search(&mut self, workspace: &Workspace, predicate: Predicate) -> Result<Op> {
        let workspace = workspace.clone();
        self.add("search", &[], move |_| {
            Collection::search(&workspace, &predicate).map(Outcome::Records)
        })
    }

    /// Adds [`Collection::delete`].
    pub fn delete(&mut self, workspace: &Workspace, key: Key<'_>) -> Result<Op> {
        let work = Work::Delete(workspace.clone(), OwnKey::of(key));
        self.add_work(DELETE, &[], work)
    }

    /// Adds [`Collection::read`] into memory that the batch allocates: the outcome is the bytes.
    pub fn read(&mut self, from: &Collection, at: u64, len: usize) -> Result<Op> {
        let source = from.clone();
        self.add("read", &[Touch::Uses(from)], move |_| {
            let mut bytes = vec![0; len];
            let n = source.read(&mut bytes, at)?;
            bytes.truncate(n);
            Ok(Outcome::Bytes(bytes))
        })
    }

    /// Adds [`Collection::read`] into the caller's memory: the outcome is the number of bytes.
    pub fn read_into(
        &mut self,
        from: &Collection,
        at: u64,
        mut to: impl AsMut<[u8]> + Send + 'static,
    ) -> Result<Op> {
        let source = from.clone();
        self.add("read", &[Touch::Uses(from)], move |_| {
            let n = source.read(to.as_mut(), at)?;
            Ok(Outcome::Number(n as u64))
        })
    }

    /// Adds [`Collection::write`].
    pub fn write(
        &mut self,
        to: &Collection,
        at: u64,
        bytes: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Op> {
        let target = to.clone();
        self.add("write", &[Touch::Uses(to)], move |log| {
            target
                .write_logged(bytes.as_ref(), at, log)
                .map(|()| Outcome::Done)
        })
    }

    /// Adds [`Collection::append`], whose outcome is the offset in bytes.
    pub fn append(
        &mut self,
        to: &Collection,
        bytes: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Op> {
        let target = to.clone();
        self.add("append", &[Touch::Uses(to)], move |log| {
            target
                .append_logged(bytes.as_ref(), log)
                .map(Outcome::Number)
        })
    }

    /// Adds [`Collection::truncate`].
    pub fn truncate(&mut self, collection: &Collection, size: u64) -> Result<Op> {
        let target = collection.clone();
        self.add("truncate", &[Touch::Uses(collection)], move |log| {
            target.truncate_logged(size, log).map(|()| Outcome::Done)
        })
    }

    /// Adds [`Collection::sync`].
    pub fn sync(&mut self, collection: &Collection) -> Result<Op> {
        let target = collection.clone();
        self.add("sync", &[Touch::Uses(collection)], move |_| {
            target.sync().map(|()| Outcome::Done)
        })
    }

    /// Adds [`Collection::get_meta`], whose outcome is the metadata.
    pub fn get_meta(&mut self, collection: &Collection) -> Result<Op> {
        let target = collection.clone();
        self.add("get_meta", &[Touch::Uses(collection)], move |_| {
            target.get_meta().map(Outcome::Meta)
        })
    }

    /// Adds [`Collection::set_meta`].
    pub fn set_meta(&mut self, collection: &Collection, changes: &[Change]) -> Result<Op> {
        let (target, changes) = (collection.clone(), changes.to_vec());
        self.add("set_meta", &[Touch::Uses(collection)], move |log| {
            target
                .set_meta_logged(&changes, log)
                .map(|()| Outcome::Done)
        })
    }

    /// Adds [`Collection::copy`], whose outcome is the number of bytes.
    pub fn copy(
        &mut self,
        from: &Collection,
        (at, len): (u64, u64),
        to: &Collection,
        to_at: u64,
    ) -> Result<Op> {
        let (source, target) = (from.clone(), to.clone());
        self.add("copy", &[Touch::Uses(from), Touch::Uses(to)], move |log| {
            source
                .copy_logged((at, len), &target, to_at, log)
                .map(Outcome::Number)
        })
    }

    /// Adds [`Collection::close`], after all earlier operations of this batch on the collection.
    pub fn close(&mut self, collection: &Collection) -> Result<Op> {
        let target = collection.clone();
        self.add(CLOSE, &[Touch::Closes(collection)], move |_| {
            target.close().map(|()| Outcome::Done)
        })
    }
}

/// A [`Key`] that owns its text.
enum OwnKey {
    Name(String),
    Uuid(crate::Uuid),
}

impl OwnKey {
    fn of(key: Key<'_>) -> OwnKey {
        match key {
            Key::Name(name) => OwnKey::Name(name.into()),
            Key::Uuid(uuid) => OwnKey::Uuid(uuid),
        }
    }

    fn as_key(&self) -> Key<'_> {
        match self {
            OwnKey::Name(name) => Key::Name(name),
            OwnKey::Uuid(uuid) => Key::Uuid(*uuid),
        }
    }
}
