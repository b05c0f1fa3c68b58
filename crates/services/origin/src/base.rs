//! The lowest layer of the origin service: the state that all its parts use.

use crate::marks::Marks;
use crate::shared::Shared;
use crate::tree::Tree;
use std::sync::Arc;

/// The pool and its origin, the tree of names, and the marks of objects.
#[derive(Clone)]
pub struct Base {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
}
