//! Finds objects by their attributes, and describes objects, on all nodes.
//!
//! A search in a directory asks all nodes for pages. The pages arrive in any order. A description
//! comes from the object's home; one request covers many objects.

use crate::peers::messages::{List, decode, encode};
use crate::peers::requests::request;
use crate::peers::{Bytes, PeerReply, PeerRequest};
use crate::views::Search;
use forebay_store::index::find::{BYTES, DESCRIBED, Described, Page, Place, TERMS, Wanted};
use forebay_store::index::{Description, Match, Term};
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};

impl<'a> Search<'a> {
    /// Returns the description of an object, with one request to its home.
    ///
    /// # Errors
    /// ENOENT if there is no such object; EHOSTDOWN if its home can't be reached; EIO.
    pub fn describe(&self, id: ObjectId) -> Result<Description> {
        let one = self.describe_all(&[id]).pop();
        one.unwrap_or(Err(Errno::IO))
    }

    /// As [`Search::describe`] for each of these objects; one request to another node covers many
    /// objects.
    ///
    /// # Errors
    /// For each object, those of [`Search::describe`].
    pub fn describe_all(&self, ids: &[ObjectId]) -> Vec<Result<Description>> {
        let mut all = Vec::with_capacity(ids.len());
        let mut left: BTreeMap<NodeId, VecDeque<usize>> = BTreeMap::new();
        for (n, id) in ids.iter().enumerate() {
            all.push(match self.cluster.remote_home(*id) {
                Some(home) => {
                    left.entry(home).or_default().push_back(n);
                    Err(Errno::HOSTDOWN)
                }
                None => self.store().index().describe_here(*id),
            });
        }
        while !left.is_empty() {
            let heads: Vec<_> = left
                .iter()
                .map(|(node, asked)| {
                    let asked = asked.iter().take(DESCRIBED).map(|n| ids[*n]);
                    (
                        *node,
                        request::DESCRIBE.encode(&List(asked.collect::<Vec<_>>())),
                    )
                })
                .collect();
            for ((node, _), reply) in heads.iter().zip(self.ask_described(&heads)) {
                let Some(asked) = left.get_mut(node) else {
                    continue;
                };
                match reply {
                    Ok(reply) if (1..=asked.len()).contains(&reply.len()) => {
                        for (n, one) in asked.drain(..reply.len()).zip(reply) {
                            all[n] = one.map_err(|e| Errno::from_raw_os_error(e as i32 & 0xfff));
                        }
                    }
                    reply => {
                        let error = reply.err().unwrap_or(Errno::PROTO);
                        asked.drain(..).for_each(|n| all[n] = Err(error));
                    }
                }
            }
            left.retain(|_, asked| !asked.is_empty());
        }
        all
    }

    /// Sends requests to all of these nodes at once.
    fn ask_described(&self, heads: &[(NodeId, Vec<u8>)]) -> Vec<Result<Vec<Described>>> {
        let Some(others) = self.cluster.peers() else {
            return Vec::new();
        };
        let requests = heads.iter().map(|(node, head)| PeerRequest {
            node: *node,
            kind: request::DESCRIBE.number(),
            head,
            bytes: Bytes::None,
        });
        // SAFETY: without bytes, no address has to be valid.
        let reply = unsafe { others.ask_all(&requests.collect::<Vec<_>>()) };
        let read = |((node, head), reply): (&(NodeId, Vec<u8>), Result<PeerReply>)| {
            let List(all) = match reply {
                Err(Errno::AGAIN) => {
                    let asked: List<ObjectId> = decode(head).ok_or(Errno::PROTO)?;
                    self.cluster.ask(*node, request::DESCRIBE, &asked)?
                }
                reply => request::DESCRIBE.decode(&reply?.head)?,
            };
            Ok(all)
        };
        heads.iter().zip(reply).map(read).collect()
    }

    /// Serves another node's [`Search::describe_all`]: returns the descriptions of the first of
    /// these objects, as many as fit into a reply.
    ///
    /// # Errors
    /// EPROTO if `ids` is empty or too long; EAGAIN if the first object is being changed.
    pub(crate) fn described_part(&self, ids: &[ObjectId]) -> Result<Vec<Described>> {
        if !(1..=DESCRIBED).contains(&ids.len()) {
            return Err(Errno::PROTO);
        }
        let (mut all, mut bytes) = (Vec::new(), 0);
        for &id in ids {
            let one = match self.cluster.remote_home(id) {
                // No node sends requests about a part or a view.
                _ if id.is_part() || id.is_view() => Err(Errno::PROTO),
                Some(_) => Err(Errno::REMCHG),
                None => self.store().index().describe_here(id),
            };
            match one {
                // Another operation is changing the object: the requesting process sends the
                // request again, with this object first, and waits.
                Err(Errno::AGAIN) if all.is_empty() => return Err(Errno::AGAIN),
                Err(Errno::AGAIN) => break,
                _ => {}
            }
            let one = one.map_err(|e| e.raw_os_error() as u32);
            bytes += encode(&one).len();
            if bytes > BYTES && !all.is_empty() {
                break;
            }
            all.push(one);
        }
        Ok(all)
    }

    /// Calls `each` for all objects of the directory for which all these terms hold, in no order.
    /// An object with several names appears under the name that the index has, if that name is in
    /// this directory. An object whose value is just outside a range may appear, too, if its value
    /// has the same `Order` as an end of the range.
    ///
    /// # Errors
    /// EINVAL without a term; EHOSTDOWN if a node can't be reached; EIO.
    pub fn matching(
        &self,
        terms: &[Term],
        dir: ObjectId,
        mut each: impl FnMut(Match),
    ) -> Result<()> {
        if terms.is_empty() {
            return Err(Errno::INVAL);
        }
        let wanted: Option<Vec<_>> = terms.iter().take(TERMS).map(Wanted::new).collect();
        let Some(wanted) = wanted else {
            return Ok(());
        };
        self.matching_on_peers(&wanted, dir, &mut each)?;
        self.store().index().all_matching_here(&wanted, dir, each)
    }

    /// Sends the search to all other nodes at once, and repeats it until no node has a further
    /// page.
    fn matching_on_peers(
        &self,
        terms: &[Wanted],
        dir: ObjectId,
        each: &mut impl FnMut(Match),
    ) -> Result<()> {
        let Some(others) = self.cluster.peers() else {
            return Ok(());
        };
        let nodes = others
            .nodes()
            .iter()
            .filter(|node| **node != others.this_node());
        let mut left: Vec<(NodeId, Place)> = nodes.map(|n| (*n, Place::default())).collect();
        let terms = List(terms.to_vec());
        while !left.is_empty() {
            let heads = left
                .iter()
                .map(|(_, place)| request::FIND.encode(&(dir, place, &terms)));
            let heads: Vec<_> = heads.collect();
            let requests = left
                .iter()
                .zip(&heads)
                .map(|((node, _), head)| PeerRequest {
                    node: *node,
                    kind: request::FIND.number(),
                    head,
                    bytes: Bytes::None,
                });
            // SAFETY: without bytes, no address has to be valid.
            let reply = unsafe { others.ask_all(&requests.collect::<Vec<_>>()) };
            let mut rest = Vec::new();
            for ((node, place), reply) in left.iter().zip(reply) {
                let page: Page = match reply {
                    // The other node doesn't wait for operations in progress, so this node does.
                    Err(Errno::AGAIN) => {
                        self.cluster
                            .ask(*node, request::FIND, &(dir, place, &terms))?
                    }
                    reply => request::FIND.decode(&reply?.head)?,
                };
                page.items.into_iter().for_each(&mut *each);
                rest.extend(page.next.map(|next| (*node, next)));
            }
            left = rest;
        }
        Ok(())
    }
}
