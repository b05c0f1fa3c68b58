//! The tree by which a pool starts: node 0 is the root, and each node has up to a fixed number of
//! children.

use std::ops::Range;

/// A tree of nodes 0 to `nodes - 1`, level by level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree {
    nodes: u32,
    fan_out: u32,
}

impl Tree {
    /// A tree of `nodes` nodes with at most `fan_out` (at least 1) children each.
    pub fn new(nodes: u32, fan_out: u32) -> Tree {
        Tree {
            nodes,
            fan_out: fan_out.max(1),
        }
    }

    /// Number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The parent of node `n`; None for the root.
    pub fn parent(&self, n: u32) -> Option<u32> {
        n.checked_sub(1).map(|n| n / self.fan_out)
    }

    /// The children of node `n`.
    pub fn children(&self, n: u32) -> Range<u32> {
        let bounded = |n: u64| n.min(u64::from(self.nodes)) as u32;
        let first = u64::from(n) * u64::from(self.fan_out) + 1;
        bounded(first)..bounded(first + u64::from(self.fan_out))
    }

    /// Level of node `n`: the number of its ancestors.
    pub fn level(&self, mut n: u32) -> u32 {
        let mut level = 0;
        while let Some(parent) = self.parent(n) {
            n = parent;
            level += 1;
        }
        level
    }

    /// The level of the deepest nodes.
    pub fn depth(&self) -> u32 {
        self.level(self.nodes.saturating_sub(1))
    }

    /// Number of nodes in the subtree of `n`, `n` included.
    pub fn below(&self, n: u32) -> u32 {
        // Nodes of one level have consecutive numbers.
        let (mut row, mut count) = (n..n.saturating_add(1).min(self.nodes), 0);
        while !row.is_empty() {
            count += row.len() as u32;
            row = self.children(row.start).start..self.children(row.end - 1).end;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_but_the_first_is_below_one_other() {
        for (nodes, fan_out) in [(1, 16), (2, 1), (17, 16), (18, 16), (1000, 3), (5, 8)] {
            let t = Tree::new(nodes, fan_out);
            let mut seen = vec![0; nodes as usize];
            for n in 0..nodes {
                for c in t.children(n) {
                    assert_eq!(t.parent(c), Some(n));
                    assert_eq!(t.level(c), t.level(n) + 1);
                    seen[c as usize] += 1;
                }
                let below: u32 = t.children(n).map(|c| t.below(c)).sum();
                assert_eq!(t.below(n), below + 1, "{t:?} {n}");
            }
            assert!(seen[0] == 0 && seen[1..].iter().all(|&n| n == 1));
            assert_eq!(t.below(0), nodes);
        }
        assert_eq!(Tree::new(10_000, 16).depth(), 4);
        assert_eq!(Tree::new(u32::MAX, 2).children(u32::MAX - 1).len(), 0);
    }
}
