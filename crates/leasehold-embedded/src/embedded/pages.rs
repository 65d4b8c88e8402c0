//! Checks every page of the data file before LMDB trusts it.
//!
//! LMDB follows page numbers and offsets without checking them, so a damaged file could crash the
//! process or, worse, hide a lease. This walk reads the whole tree through bounds-checked slices
//! and accepts only what a store writes: two meta pages, one tree of records, one tree of free
//! pages. It costs about a microsecond per page. The layout is LMDB 0.9.70's (`mdb.c`: `MDB_page`,
//! `MDB_node`, `MDB_db`, `MDB_meta`), which is native in width and byte order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::commits;
use super::record::{Stored, Unreadable};

/// Why a data file is not opened.
#[derive(Debug)]
pub(super) enum Damage {
    /// What is wrong, for people.
    Corrupt(String),
    Io(io::Error),
    /// Not known to be damaged, but it has more pages than should be read.
    Unread,
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return corrupt("it is cut off");
        }
        Self::Io(error)
    }
}

fn corrupt(why: impl Into<String>) -> Damage {
    Damage::Corrupt(why.into())
}

/// The width of page numbers and sizes.
const WORD: usize = size_of::<usize>();
/// `PAGEHDRSZ`: page number, pad, flags, then two bounds or a number of pages.
const PAGE_HEAD: usize = WORD + 8;
/// `NODESIZE`: low and high half of a size, flags, size of the key.
const NODE_HEAD: usize = 8;
const NO_PAGE: usize = usize::MAX;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;
/// Flags that a page may carry over from the transaction that wrote it.
const PASSING: u16 = 0x10 | 0x4000 | 0x8000;

const BIG_DATA: u16 = 0x01;
/// `MDB_INTEGERKEY`, a flag of a tree.
const INTEGER_KEYS: u16 = 0x08;

const MAGIC: u32 = 0xbeef_c0de;
const DATA_VERSION: u32 = 1;
/// `CURSOR_STACK`: no tree is deeper.
const DEPTH_MAX: u16 = 32;
/// More pages than any store has, so that a wrong number costs little memory.
const PAGES_MAX: usize = 1 << 26;
/// The first byte of the names of the store's own entries, which are not locks.
pub(super) const OWN: u8 = 0;

/// A tree's root and figures.
struct Tree {
    depth: u16,
    entries: usize,
    root: usize,
}

struct Walk<'a> {
    file: &'a File,
    page_bytes: usize,
    last_page: usize,
    /// One bit per page: whether the walk has met it.
    met: Vec<u64>,
    last_key: Option<Vec<u8>>,
    /// The least name that the branches above allow next.
    at_least: Option<Vec<u8>>,
    entries: usize,
    free: bool,
}

/// Checks the whole file, which may grow to `bytes_max`, unless it has more than `at_most` pages.
/// The caller excludes all other processes.
pub(super) fn check(file: &File, bytes_max: u64, at_most: Option<usize>) -> Result<(), Damage> {
    let page_bytes = rustix::param::page_size();
    let mut metas: Vec<Vec<u8>> = Vec::new();
    for number in 0..2 {
        let page = read(file, page_bytes, number, 1)?;
        if short(&page, WORD + 2)? & META == 0 || word(&page, 0)? != number {
            return Err(corrupt(format!("page {number} is not a meta page")));
        }
        let version = int(&page, PAGE_HEAD + 4)?;
        if int(&page, PAGE_HEAD)? != MAGIC || version != DATA_VERSION {
            return Err(corrupt(format!("meta page {number} is not LMDB's (version {version})")));
        }
        metas.push(page);
    }
    let [even, odd] = metas.as_slice() else { return Err(corrupt("it has no meta pages")) };
    for (number, meta) in [even, odd].into_iter().enumerate() {
        // The page size is in the pad of the free pages' tree; LMDB reads it from either page.
        let size = int(meta, META_TREES)?;
        if usize::try_from(size).ok() != Some(page_bytes) {
            return Err(corrupt(format!(
                "meta page {number}: its pages have {size} bytes, this machine's {page_bytes}"
            )));
        }
        // LMDB would extend the file to a greater length, and map it at another address.
        let [address, length] = [META_MAP, META_MAP + WORD].map(|at| word(meta, at));
        if (address?, length? as u64) != (0, bytes_max) {
            return Err(corrupt(format!("meta page {number}: it is mapped in another way")));
        }
        // The order of names: free pages are ordered as numbers, records bytewise.
        let orders = [META_TREES, META_TREES + TREE].map(|tree| short(meta, tree + 4));
        let [free, records] = orders;
        if (free?, records?) != (INTEGER_KEYS, 0) || int(meta, META_TREES + TREE)? != 0 {
            return Err(corrupt(format!("meta page {number}: its trees are of another kind")));
        }
    }
    // Transactions write the two alternately, so their numbers are neighbours, and the greater
    // belongs to the last one. If it were damaged, LMDB would silently use the other and lose the
    // last transaction.
    let (even_id, odd_id) = (txn_id(even)?, txn_id(odd)?);
    let new = (even_id, odd_id) == (0, 0);
    if !new && (even_id % 2 != 0 || odd_id % 2 != 1 || even_id.abs_diff(odd_id) != 1) {
        return Err(corrupt(format!("its meta pages are of transactions {even_id} and {odd_id}")));
    }
    let last = commits::CommitMark::read(file)?.last();
    if last != Some(even_id.max(odd_id) as u64) {
        return Err(corrupt(format!(
            "its meta pages are of transactions {even_id} and {odd_id}, and the last one was {}",
            last.map_or_else(|| "another".to_owned(), |last| last.to_string())
        )));
    }
    let meta = if odd_id > even_id { odd } else { even };
    let last_page = word(meta, META_TREES + 2 * TREE)?;
    let length = file.metadata()?.len();
    let pages = usize::try_from(length).unwrap_or(usize::MAX) / page_bytes;
    // LMDB would extend the file.
    let most = usize::try_from(bytes_max).unwrap_or(usize::MAX) / page_bytes;
    if !(1..most.min(PAGES_MAX)).contains(&last_page) {
        return Err(corrupt(format!("its last page is {last_page}")));
    }
    if at_most.is_some_and(|at_most| last_page >= at_most) {
        return Err(Damage::Unread);
    }
    let mut walk = Walk {
        file,
        page_bytes,
        last_page,
        met: vec![0; last_page / 64 + 1],
        last_key: None,
        at_least: None,
        entries: 0,
        free: false,
    };
    walk.mark(0, 2)?;
    let records = tree(meta, META_TREES + TREE)?;
    walk.tree(&records, pages)?;
    walk.free = true;
    let free = tree(meta, META_TREES)?;
    walk.tree(&free, pages)
}

/// Undoes the transaction in whose commit its process died, if any, even if it already counts.
///
/// LMDB 0.9.70 writes a meta page's content and then the number that makes it count. No barrier
/// keeps a compiler for x86 from writing the number first. The transaction before is whole: its
/// pages were not written since. The caller excludes all other processes.
pub(super) fn undo_half_committed(file: &File) -> io::Result<()> {
    let words = match commits::CommitMark::read(file) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        read => read?,
    };
    if let Some(txn) = words.under_way() {
        undo(file, txn)?;
        commits::CommitMark::of(txn.saturating_sub(1)).write(file)?;
    }
    Ok(())
}

fn undo(file: &File, txn: u64) -> io::Result<()> {
    let page_bytes = rustix::param::page_size() as u64;
    let at = |number: u64| number * page_bytes + (META_TREES + 2 * TREE + WORD) as u64;
    let committed = |number: u64| {
        let mut bytes = [0; WORD];
        file.read_exact_at(&mut bytes, at(number))?;
        io::Result::Ok(usize::from_ne_bytes(bytes) as u64)
    };
    let of = txn % 2;
    if committed(of)? != txn || committed(1 - of)? != txn - 1 {
        return Ok(());
    }
    let before = usize::try_from(txn.saturating_sub(2)).map_err(io::Error::other)?;
    file.write_all_at(&before.to_ne_bytes(), at(of))
}

/// The offset of the address and map size in a meta page: after magic and version.
const META_MAP: usize = PAGE_HEAD + 8;
/// The offset of the two trees, which follow.
const META_TREES: usize = META_MAP + 2 * WORD;
/// `sizeof(MDB_db)`: pad, flags, depth, then three counts of pages, entries and root.
const TREE: usize = 8 + 5 * WORD;

fn txn_id(meta: &[u8]) -> Result<usize, Damage> {
    word(meta, META_TREES + 2 * TREE + WORD)
}

fn tree(meta: &[u8], at: usize) -> Result<Tree, Damage> {
    Ok(Tree {
        depth: short(meta, at + 6)?,
        entries: word(meta, at + 8 + 3 * WORD)?,
        root: word(meta, at + 8 + 4 * WORD)?,
    })
}

impl Walk<'_> {
    fn tree(&mut self, tree: &Tree, pages: usize) -> Result<(), Damage> {
        self.last_key = None;
        self.at_least = None;
        self.entries = 0;
        if tree.root == NO_PAGE {
            return if tree.entries == 0 { Ok(()) } else { Err(corrupt("a tree has no root")) };
        }
        if tree.depth == 0 || tree.depth > DEPTH_MAX {
            return Err(corrupt(format!("a tree of depth {}", tree.depth)));
        }
        self.page(tree.root, tree.depth, pages)?;
        if self.entries != tree.entries {
            let (found, told) = (self.entries, tree.entries);
            return Err(corrupt(format!("{found} entries instead of {told}")));
        }
        Ok(())
    }

    /// Checks a page and all below it; `height` is 1 for a leaf.
    fn page(&mut self, number: usize, height: u16, pages: usize) -> Result<(), Damage> {
        let damaged = |what: &str| corrupt(format!("page {number}: {what}"));
        if number >= pages {
            return Err(damaged("the file ends before it"));
        }
        self.mark(number, 1)?;
        let page = read(self.file, self.page_bytes, number, 1)?;
        let kind = short(&page, WORD + 2)? & !PASSING;
        let expected = if height == 1 { LEAF } else { BRANCH };
        if word(&page, 0)? != number || kind != expected {
            return Err(damaged("another page was expected here"));
        }
        let lower = usize::from(short(&page, WORD + 4)?);
        let upper = usize::from(short(&page, WORD + 6)?);
        if lower < PAGE_HEAD || lower % 2 != 0 || upper < lower || upper > self.page_bytes {
            return Err(damaged("its bounds are wrong"));
        }
        let nodes = (lower - PAGE_HEAD) / 2;
        if nodes == 0 || (kind == BRANCH && nodes < 2) {
            return Err(damaged("it has too few entries"));
        }
        for index in 0..nodes {
            let at = usize::from(short(&page, PAGE_HEAD + 2 * index)?);
            if at < upper {
                return Err(damaged("an entry lies outside"));
            }
            let node = page.get(at..).ok_or_else(|| damaged("an entry lies outside"))?;
            if kind == BRANCH {
                // A branch's first entry has no lower bound.
                if index > 0 && !self.free {
                    let key = name(node)?;
                    if self.last_key.as_deref().is_some_and(|last| last >= key) {
                        return Err(damaged("names are out of order"));
                    }
                    self.at_least = Some(key.to_vec());
                }
                self.page(child(node)?, height - 1, pages)?;
            } else {
                self.leaf(node, pages).map_err(|damage| match damage {
                    Damage::Corrupt(what) => damaged(&what),
                    other => other,
                })?;
            }
        }
        Ok(())
    }

    fn leaf(&mut self, node: &[u8], pages: usize) -> Result<(), Damage> {
        let (low, high) = halves(node)?;
        let data_bytes = usize::from(low) | usize::from(high) << 16;
        let flags = short(node, 4)?;
        let key = name(node)?;
        let key_end = NODE_HEAD + key.len();
        self.entries += 1;
        let big;
        let value = match flags {
            0 => node
                .get(key_end..key_end + data_bytes)
                .ok_or_else(|| corrupt("a value lies outside"))?,
            BIG_DATA => {
                let first = word(node, key_end)?;
                big = self.overflow(first, data_bytes, pages)?;
                big.get(PAGE_HEAD..PAGE_HEAD + data_bytes)
                    .ok_or_else(|| corrupt("a value lies outside"))?
            }
            other => return Err(corrupt(format!("an entry of kind {other}"))),
        };
        if self.free {
            return self.free_list(value);
        }
        let too_low = self.at_least.as_deref().is_some_and(|least| least > key);
        if too_low || self.last_key.as_deref().is_some_and(|last| last >= key) {
            return Err(corrupt("names are out of order"));
        }
        self.last_key = Some(key.to_vec());
        if key.first() == Some(&OWN) {
            return Ok(());
        }
        match Stored::open(key, value) {
            // Only requests for this lock are refused.
            Ok(_) | Err(Unreadable::Damaged | Unreadable::Newer(_)) => Ok(()),
            Err(Unreadable::Corrupt) => Err(corrupt("a record's name is wrong")),
        }
    }

    fn overflow(&mut self, first: usize, bytes: usize, pages: usize) -> Result<Vec<u8>, Damage> {
        let count = (PAGE_HEAD + bytes).div_ceil(self.page_bytes);
        if first.checked_add(count).is_none_or(|end| end > pages) {
            return Err(corrupt("the file ends before a value"));
        }
        self.mark(first, count)?;
        let data = read(self.file, self.page_bytes, first, count)?;
        let kind = short(&data, WORD + 2)? & !PASSING;
        let told = usize::try_from(int(&data, WORD + 4)?).unwrap_or(usize::MAX);
        if word(&data, 0)? != first || kind != OVERFLOW || told != count {
            return Err(corrupt("a long value's pages are not its own"));
        }
        Ok(data)
    }

    /// A list of free pages: their count, then their numbers.
    fn free_list(&mut self, list: &[u8]) -> Result<(), Damage> {
        let count = word(list, 0)?;
        if count.checked_add(1).and_then(|words| words.checked_mul(WORD)) > Some(list.len()) {
            return Err(corrupt("a list of free pages is cut off"));
        }
        let mut before = NO_PAGE;
        for index in 1..=count {
            let number = word(list, index * WORD)?;
            if number >= before {
                return Err(corrupt("a list of free pages is out of order"));
            }
            self.mark(number, 1)?;
            before = number;
        }
        Ok(())
    }

    /// Marks pages as used, once each.
    fn mark(&mut self, first: usize, count: usize) -> Result<(), Damage> {
        for number in first..first.saturating_add(count) {
            let bit = 1 << (number % 64);
            let met = self.met.get_mut(number / 64);
            match met.filter(|_| number <= self.last_page) {
                Some(met) if *met & bit == 0 => *met |= bit,
                Some(_) => return Err(corrupt(format!("page {number} is used twice"))),
                None => return Err(corrupt(format!("page {number} does not exist"))),
            }
        }
        Ok(())
    }
}

fn read(file: &File, page_bytes: usize, first: usize, count: usize) -> Result<Vec<u8>, Damage> {
    let bytes = count.checked_mul(page_bytes).ok_or_else(|| corrupt("a value without end"))?;
    let offset = first.checked_mul(page_bytes).ok_or_else(|| corrupt("a page without place"))?;
    let mut pages = vec![0; bytes];
    file.read_exact_at(&mut pages, offset as u64)?;
    Ok(pages)
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Result<[u8; N], Damage> {
    let found = from.get(at..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or_else(|| corrupt("something lies outside its page"))
}

fn short(from: &[u8], at: usize) -> Result<u16, Damage> {
    bytes(from, at).map(u16::from_ne_bytes)
}

fn int(from: &[u8], at: usize) -> Result<u32, Damage> {
    bytes(from, at).map(u32::from_ne_bytes)
}

fn word(from: &[u8], at: usize) -> Result<usize, Damage> {
    bytes(from, at).map(usize::from_ne_bytes)
}

/// A node's key.
fn name(node: &[u8]) -> Result<&[u8], Damage> {
    let end = NODE_HEAD + usize::from(short(node, 6)?);
    node.get(NODE_HEAD..end).ok_or_else(|| corrupt("a name lies outside"))
}

/// The lower and the higher half of a node's size or page number.
fn halves(node: &[u8]) -> Result<(u16, u16), Damage> {
    let (first, second) = (short(node, 0)?, short(node, 2)?);
    Ok(if cfg!(target_endian = "little") { (first, second) } else { (second, first) })
}

/// The page below a branch's node: its flags are the highest bits.
fn child(node: &[u8]) -> Result<usize, Damage> {
    let (low, high) = halves(node)?;
    let number = usize::from(low) | usize::from(high) << 16;
    #[cfg(target_pointer_width = "64")]
    let number = number | usize::from(short(node, 4)?) << 32;
    Ok(number)
}
