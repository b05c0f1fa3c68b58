//! `forebay workspace` and `forebay collection`: the I/O verbs on the command line.
//!
//! This process reads and writes single collections (`put`, `get`). Imports and exports of many
//! files are staged by all nodes that hold them ([`transfer`]).

mod records;
mod transfer;

use crate::collection_args::{
    CollectionCommand, FILES, Known, NewAttributes, OfCollection, OfWorkspace, Target,
    WorkspaceCommand,
};
use crate::fail::{Fail, code};
use crate::output::{json, print_notice, quoted, write};
use forebay_iov::{
    Collection, Errno, Error, Key, Meta, Options, Predicate, Record, Session, Workspace,
    read_controls, write_controls,
};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::Path;

/// Size of one read or write. Bytes.
const BLOCK: usize = 4 << 20;

/// Where the metadata and the bytes of collections are stored.
struct At<'a> {
    pool: &'a str,
    /// Address of the metadata store, unless it is the pool.
    store: Option<&'a str>,
    /// The attached directories: the name of each back end and its directory.
    attached: &'a [(String, String)],
}

/// Turns a verb's error into a command's. Invalid arguments are wrong usage.
fn failed(e: Error) -> Fail {
    match e.errno() {
        Errno::INVAL | Errno::TOOBIG | Errno::NAMETOOLONG => Fail::usage(e),
        _ => Fail::failed(e),
    }
}

impl<'a> At<'a> {
    fn new(pool: &'a str, known: &'a Known) -> Result<At<'a>, Fail> {
        let attached = &known.attached;
        let store = known.store.as_deref().filter(|s| !s.is_empty());
        let (pool, store) = match store.map(|s| s.split_once(':').unwrap_or((s, ""))) {
            None | Some(("pool", "")) => (pool, None),
            Some(("pool", pool)) => (pool, None),
            Some(("etcd", _)) => (pool, store),
            Some(_) => {
                return Err(Fail::usage(format!(
                    "--store {}: metadata lie in the pool, or in an etcd: etcd://HOST:PORT",
                    store.unwrap_or_default()
                )));
            }
        };
        Ok(At {
            pool,
            store,
            attached,
        })
    }

    fn open(&self) -> Result<Session, Fail> {
        let no_pool = |e| Fail::new(code::NO_POOL, e);
        let session = match self.store {
            None => Session::open(&format!("pool:{}", self.pool)).map_err(no_pool)?,
            Some(store) => {
                let session = Session::open(store).map_err(failed)?;
                match session.attach(FILES, FILES, self.pool) {
                    // Without the pool, the collections' records can still be shown.
                    Err(e) if e.errno() == Errno::NOENT => {}
                    attached => attached.map_err(no_pool)?,
                }
                session
            }
        };
        for (name, dir) in self.attached {
            session.attach(name, "directory", dir).map_err(failed)?;
        }
        Ok(session)
    }

    /// Whether this command knows where the back end's bytes are stored.
    fn knows(&self, backend: &str) -> bool {
        backend == FILES || self.attached.iter().any(|(name, _)| name == backend)
    }

    fn load(&self, name: &str) -> Result<Workspace, Fail> {
        let session = self.open()?;
        let (option, place) = match self.store {
            None => ("--pool", self.pool),
            Some(store) => ("--store", store),
        };
        Workspace::load(&session, Key::Name(name)).map_err(|e| match e.errno() {
            Errno::NOENT => Fail::failed(format!(
                "{e}; make it with: forebay workspace create {} {option} {}",
                quoted(name),
                quoted(place)
            )),
            _ => failed(e),
        })
    }
}

pub fn workspace(pool: &str, a: &WorkspaceCommand) -> Result<u8, Fail> {
    let at = At::new(pool, &a.known)?;
    match &a.what {
        OfWorkspace::Create {
            name,
            new_attributes,
        } => {
            Workspace::create(&at.open()?, name, &new_attributes.meta()).map_err(failed)?;
        }
        OfWorkspace::List { json } => {
            let all = Workspace::search(&at.open()?, &Predicate::everything());
            list(&all.map_err(failed)?, *json)?;
        }
        OfWorkspace::Find { predicate, json } => {
            let wanted = Predicate::parse(predicate).map_err(failed)?;
            list(
                &Workspace::search(&at.open()?, &wanted).map_err(failed)?,
                *json,
            )?;
        }
        OfWorkspace::Show { name, json } => {
            let workspace = at.load(name)?;
            let meta = workspace.get_meta().map_err(failed)?;
            show(name, workspace.uuid(), &meta, &[], *json)?;
        }
        OfWorkspace::Rm { name } => at.load(name)?.delete().map_err(failed)?,
    }
    Ok(code::OK)
}

pub fn collection(pool: &str, a: &CollectionCommand) -> Result<u8, Fail> {
    let at = At::new(pool, &a.known)?;
    match &a.what {
        OfCollection::Create {
            workspace,
            name,
            new_attributes,
            controls,
            into,
        } => {
            let options = Options {
                meta: new_attributes.meta(),
                controls: read_controls(&controls.join(",")).map_err(failed)?,
                backend: into.backend.clone(),
            };
            let made = Collection::create(&at.load(workspace)?, name, &options);
            made.and_then(|c| c.close()).map_err(failed)?;
        }
        OfCollection::List { workspace, json } => {
            let all = Collection::search(&at.load(workspace)?, &Predicate::everything());
            list(&all.map_err(failed)?, *json)?;
        }
        OfCollection::Find {
            workspace,
            predicate,
            json,
        } => {
            let wanted = Predicate::parse(predicate).map_err(failed)?;
            let found = Collection::search(&at.load(workspace)?, &wanted);
            list(&found.map_err(failed)?, *json)?;
        }
        OfCollection::Show {
            workspace,
            name,
            json,
        } => {
            show_collection(&at, &at.load(workspace)?, name, *json)?;
        }
        OfCollection::Put {
            workspace,
            name,
            file,
            new_attributes,
            into,
        } => put(&at.load(workspace)?, name, file, new_attributes, into)?,
        OfCollection::Get {
            workspace,
            name,
            file,
        } => {
            let workspace = at.load(workspace)?;
            let collection = Collection::open(&workspace, Key::Name(name)).map_err(failed)?;
            get(&collection, file.as_deref())?;
        }
        OfCollection::Import {
            workspace,
            directory,
            new_attributes,
            into,
            json,
        } => {
            let (into, json) = (into.backend.as_deref(), *json);
            return transfer::import(&at, workspace, directory, new_attributes, into, json);
        }
        OfCollection::Export {
            workspace,
            directory,
            predicate,
            json,
        } => return transfer::export(&at, workspace, directory, predicate, *json),
        OfCollection::Rm { workspace, names } => {
            let workspace = at.load(workspace)?;
            let keys: Vec<Key<'_>> = names.iter().map(|name| Key::Name(name)).collect();
            let mut errors: Vec<Error> = Collection::delete_all(&workspace, &keys)
                .into_iter()
                .filter_map(Result::err)
                .collect();
            let last = errors.pop();
            errors.iter().for_each(print_notice);
            last.map_or(Ok(()), |error| Err(failed(error)))?;
        }
    }
    Ok(code::OK)
}

fn show_collection(at: &At, workspace: &Workspace, name: &str, json: bool) -> Result<(), Fail> {
    let record = Collection::lookup(workspace, Key::Name(name)).map_err(failed)?;
    let mut more = vec![
        ("backend", record.backend.clone()),
        ("controls", write_controls(&record.controls)),
    ];
    if !record.place.is_empty() {
        more.push(("place", record.place.clone()));
    }
    if at.knows(&record.backend) {
        match Collection::open(workspace, Key::Name(name)) {
            // The collection is in another pool, so its size isn't known here.
            Err(e) if e.errno() == Errno::NODEV => {}
            opened => {
                let collection = opened.map_err(failed)?;
                more.push(("size", collection.size().map_err(failed)?.to_string()));
            }
        }
    }
    show(name, record.uuid, &record.meta, &more, json)
}

/// Prints the names of records, one per line, or as JSON the complete records.
fn list(records: &[Record], as_json: bool) -> Result<(), Fail> {
    if as_json {
        let in_words = |r: &Record| {
            serde_json::json!({
                "name": r.name, "uuid": r.uuid.to_string(), "backend": r.backend,
                "controls": write_controls(&r.controls), "meta": r.meta,
            })
        };
        return json(&records.iter().map(in_words).collect::<Vec<_>>());
    }
    let lines: String = records
        .iter()
        .flat_map(|r| [r.name.as_str(), "\n"])
        .collect();
    write(lines.as_bytes())
}

fn show(
    name: &str,
    uuid: forebay_iov::Uuid,
    meta: &Meta,
    more: &[(&str, String)],
    as_json: bool,
) -> Result<(), Fail> {
    let uuid = uuid.to_string();
    if as_json {
        let mut all = serde_json::Map::new();
        all.insert("name".into(), name.into());
        all.insert("uuid".into(), uuid.into());
        for (key, value) in more {
            let value = match (*key, value.parse::<u64>()) {
                ("size", Ok(size)) => size.into(),
                _ => value.as_str().into(),
            };
            all.insert((*key).into(), value);
        }
        all.insert("meta".into(), serde_json::json!(meta));
        return json(&all);
    }
    let mut text = format!("name: {name}\nuuid: {uuid}\n");
    for (key, value) in more.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "{key}: {value}");
    }
    for (key, value) in meta {
        let _ = writeln!(text, "meta {key}={value}");
    }
    write(text.as_bytes())
}

fn put(
    workspace: &Workspace,
    name: &str,
    file: &Path,
    new_attributes: &NewAttributes,
    into: &Target,
) -> Result<(), Fail> {
    let cannot = |e| Fail::failed(format!("{}: can't be read: {e}", file.display()));
    let mut from: Box<dyn Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(cannot)?)
    };
    // If the input is a directory, this read fails, before the collection is truncated.
    let mut block = vec![0; BLOCK];
    let mut n = fill(&mut from, &mut block).map_err(cannot)?;
    let collection = match Collection::open(workspace, Key::Name(name)) {
        Err(e) if e.errno() == Errno::NOENT => {
            let options = Options {
                meta: new_attributes.meta(),
                backend: into.backend.clone(),
                ..Options::default()
            };
            Collection::create(workspace, name, &options)
        }
        Ok(there) => there
            .truncate(0)
            .and_then(|()| there.set_meta(&new_attributes.changes()))
            .map(|()| there),
        failed => failed,
    };
    let (collection, mut at) = (collection.map_err(failed)?, 0);
    while n > 0 {
        collection.write(&block[..n], at).map_err(failed)?;
        at += n as u64;
        n = fill(&mut from, &mut block).map_err(cannot)?;
    }
    collection.close().map_err(failed)
}

/// Reads until the block is full or the input ends. Returns the number of bytes.
fn fill(from: &mut dyn Read, block: &mut [u8]) -> std::io::Result<usize> {
    let mut n = 0;
    while n < block.len() {
        match from.read(&mut block[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

fn get(collection: &Collection, file: Option<&Path>) -> Result<(), Fail> {
    let file = file.filter(|f| f.as_os_str() != "-");
    let cannot = |e| {
        let shown = file.map_or_else(String::new, |f| f.display().to_string());
        Fail::failed(format!("{shown}: can't be written: {e}"))
    };
    let mut to = file
        .map(std::fs::File::create)
        .transpose()
        .map_err(cannot)?;
    let (mut block, mut at) = (vec![0; BLOCK], 0);
    loop {
        let n = collection.read(&mut block, at).map_err(failed)?;
        if n == 0 {
            return Ok(());
        }
        match &mut to {
            Some(to) => to.write_all(&block[..n]).map_err(cannot)?,
            None => write(&block[..n])?,
        }
        at += n as u64;
    }
}
