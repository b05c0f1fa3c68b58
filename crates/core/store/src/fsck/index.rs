//! Checks that the index of user attributes contains what attributes and names require, and nothing
//! else.

use super::findings::Report;
use super::model::{Model, Name, indexed_object, name};
use crate::index::{hash_of, keeps_names};
use crate::record::{Key, Mark};
use crate::{ObjectId, Store};
use std::collections::{BTreeSet, HashMap};

const PART: &str = "index";

/// Checks the index, and repairs it in the model.
pub(crate) fn check_index(store: &Store, m: &mut Model, report: &mut Report) {
    let made = m.objects.iter().filter(|(_, o)| keeps_names(&o.inode));
    let made: Vec<u64> = made.map(|(&id, _)| id).collect();
    if m.words.is_empty() && m.known.is_empty() && m.indexed.is_empty() && made.is_empty() {
        return;
    }
    let names = m.names();
    let mut expected = BTreeSet::new();
    let mut known = std::mem::take(&mut m.known);
    let words = std::mem::take(&mut m.words);
    for id in made {
        check_all_known(store, m, &names, (id, known.entry(id).or_default()), report);
        if !words.contains_key(&id) {
            known.remove(&id);
        }
    }
    for (&id, words) in &words {
        let called = check_known(store, m, &names, (id, known.remove(&id)), report);
        if let Some(called) = called {
            let mark = Mark {
                name: hash_of(&called.1),
                id: ObjectId(id),
            };
            expected.extend(
                words
                    .iter()
                    .flat_map(|word| word.keys(mark))
                    .map(|key| key.to_vec()),
            );
        }
    }
    for (id, names) in known {
        forget_known(store, m, id, &names, report);
    }
    let indexed = std::mem::take(&mut m.indexed);
    // The index records of these objects are being moved.
    let left = std::mem::take(&mut m.left);
    let of_left = |key: &[u8]| indexed_object(key).is_some_and(|id| left.contains(&id.0));
    for key in expected.difference(&indexed).filter(|key| !of_left(key)) {
        let id = indexed_object(key).unwrap_or(ObjectId::ROOT);
        let what = m.description(id.0, &names);
        report.add(
            PART,
            format!("{what}: an attribute of it isn't in the index"),
            "it is put there",
        );
        let shard = store.files.shard_of(id);
        m.changes.push((shard, key.clone(), Some(Vec::new())));
    }
    for key in indexed.difference(&expected).filter(|key| !of_left(key)) {
        let id = indexed_object(key).unwrap_or(ObjectId::ROOT);
        let what = m.description(id.0, &names);
        report.add(
            PART,
            format!("{what}: an attribute is in the index that it hasn't, or under another name"),
            "it is taken out",
        );
        m.changes
            .push((store.files.shard_of(id), key.clone(), None));
    }
}

/// Checks that all names of an ephemeral file are recorded, and no others.
fn check_all_known(
    store: &Store,
    m: &mut Model,
    names: &HashMap<u64, Vec<Name>>,
    (id, known): (u64, &mut Vec<Name>),
    report: &mut Report,
) {
    let links = m.objects.get(&id).map_or(&[][..], |o| &o.links);
    let here = names.get(&id).into_iter().flatten();
    let all: BTreeSet<Name> = here.chain(links).cloned().collect();
    let (right, wrong): (Vec<Name>, Vec<Name>) = std::mem::take(known)
        .into_iter()
        .partition(|n| all.contains(n));
    forget_known(store, m, id, &wrong, report);
    for of in all.iter().filter(|of| !right.contains(of)) {
        report.add(
            PART,
            format!(
                "{}: it goes with its maker, but its name {} isn't noted",
                m.description(id, names),
                name(&of.1)
            ),
            "it is noted",
        );
        let object = ObjectId(id);
        let key = Key::known_name(object, ObjectId(of.0), &of.1).to_vec();
        m.changes
            .push((store.files.shard_of(object), key, Some(Vec::new())));
    }
    *known = all.into_iter().collect();
}

/// Checks the recorded names of an object with attributes. Returns the name by which it must be
/// in the index.
fn check_known(
    store: &Store,
    m: &mut Model,
    names: &HashMap<u64, Vec<Name>>,
    (id, known): (u64, Option<Vec<Name>>),
    report: &mut Report,
) -> Option<Name> {
    let known = known.unwrap_or_default();
    let o = m.objects.get(&id)?;
    if o.inode.is_dir() {
        let own = (o.inode.parent, o.tail.clone());
        forget_known(store, m, id, &known, report);
        return (id != ObjectId::ROOT.0).then_some(own);
    }
    let here = names.get(&id).into_iter().flatten();
    let all: BTreeSet<Name> = here.chain(&o.links).cloned().collect();
    let (right, wrong): (Vec<Name>, Vec<Name>) =
        known.into_iter().partition(|name| all.contains(name));
    forget_known(store, m, id, &wrong, report);
    if let Some(first) = right.into_iter().min() {
        return Some(first);
    }
    // A name that isn't confirmed enters the index when it is confirmed.
    let unconfirmed = &m.objects.get(&id)?.unconfirmed;
    let first = all.into_iter().find(|name| !unconfirmed.contains(name))?;
    report.add(
        PART,
        format!(
            "{}: it has attributes, but none of its names is noted",
            m.description(id, names)
        ),
        "one is noted",
    );
    let object = ObjectId(id);
    let key = Key::known_name(object, ObjectId(first.0), &first.1).to_vec();
    m.changes
        .push((store.files.shard_of(object), key, Some(Vec::new())));
    Some(first)
}

fn forget_known(store: &Store, m: &mut Model, id: u64, wrong: &[Name], report: &mut Report) {
    for of in wrong {
        report.add(
            PART,
            format!(
                "object {id}: the name {} in directory {} is noted for it, which it hasn't",
                name(&of.1),
                of.0
            ),
            "the note is removed",
        );
        let id = ObjectId(id);
        let key = Key::known_name(id, ObjectId(of.0), &of.1).to_vec();
        m.changes.push((store.files.shard_of(id), key, None));
    }
}
