//! Cases about names and labels that are meant to break things.

use leasehold_core::{Acquire, Key, Metadata, OwnerName, Release};

use super::context::{Context, LONG, key};

/// Names that some layer might misread, or confuse with each other.
fn hostile_names(cx: &Context) -> Vec<Key> {
    let tails = [
        "a",
        "A",
        "a:",
        "a::",
        ":a",
        "a:fence",
        "a:queue",
        "a:holders",
        "a/b",
        "a//b",
        "a\\",
        "a\\b",
        "{a}",
        "{a",
        "a}",
        "}{",
        "{}",
        "{{a}}",
        "{a}b",
        "a{b}",
        "%7Ba%7D",
        "%",
        "%%",
        "%25",
        "*",
        "?",
        "[a]",
        "[^a]",
        "a b",
        " a",
        "a ",
        "'",
        "\"",
        "`",
        ";",
        "--",
        "$a",
        "#a",
        "&",
        "|",
        "<a>",
        "..",
        ".",
        "../a",
        "/",
        "a\u{a0}b",
        "é",
        "e\u{301}",
        "日本語",
        "🔒",
        "\u{202e}a",
        "\u{feff}a",
        "ß",
        "ss",
        "İ",
        "\u{fffd}",
        "\u{10ffff}",
        "0",
        "00",
        "-1",
        "null",
        "nil",
        "a,b",
        "a=b",
        "a@b",
        "a+b",
        "a~b",
    ];
    tails.iter().map(|tail| cx.named(tail)).collect()
}

pub(super) async fn names_are_never_taken_for_each_other(cx: &Context) {
    let names = hostile_names(cx);
    let mut leases = Vec::new();
    for (number, name) in names.iter().enumerate() {
        leases.push(cx.party(name).owner(&number.to_string()).take().await);
    }
    for (number, name) in names.iter().enumerate() {
        assert_eq!(cx.holders(name).await, [number.to_string()], "{name}");
        assert_eq!(&cx.show(name).await.key, name);
    }
    for (number, lease) in leases.into_iter().enumerate() {
        assert_eq!(lease.release().await, Release::Released);
        assert_eq!(cx.inspect(&names[number]).await, None);
        for (other, name) in names.iter().enumerate().skip(number + 1).take(2) {
            assert_eq!(cx.holders(name).await, [other.to_string()], "{name}");
        }
    }
}

pub(super) async fn strange_names_are_listed_as_they_are(cx: &Context) {
    let mut names = hostile_names(cx);
    let mut leases = Vec::new();
    for name in &names {
        leases.push(cx.party(name).take().await);
    }
    names.sort();
    assert_eq!(cx.names(cx.prefix()).await, names);
    for lease in leases {
        lease.end().await;
    }
    assert!(cx.list(cx.prefix()).await.is_empty());
}

pub(super) async fn a_name_may_start_with_anything(cx: &Context) {
    let random = cx.prefix();
    for start in ["}", "{", "*", ":", "/", "\\", "\"", " ", "日", "%", "-", "\u{200b}"] {
        let name = key(&format!("{start}{random}"));
        let lease = cx.party(&name).owner("o").take().await;
        assert_eq!(cx.holders(&name).await, ["o"], "{name}");
        if cx.store().capability().list {
            assert_eq!(cx.names(name.as_str()).await, std::slice::from_ref(&name));
        }
        lease.end().await;
        assert_eq!(cx.inspect(&name).await, None);
    }
}

pub(super) async fn the_longest_names_work_and_differ_in_their_last_byte(cx: &Context) {
    let fill = |last: &str| {
        let mut name = cx.prefix().to_owned();
        while name.len() + last.len() < Key::MAX_BYTES {
            name.push('x');
        }
        name.push_str(last);
        key(&name)
    };
    let names = [fill("a"), fill("b"), fill("}"), fill("{"), fill("é")];
    let mut leases = Vec::new();
    for name in &names {
        assert_eq!(name.as_str().len(), Key::MAX_BYTES);
        leases.push(cx.party(name).owner(&name.as_str()[500..]).take().await);
    }
    for name in &names {
        assert_eq!(cx.holders(name).await, [&name.as_str()[500..]]);
        assert_eq!(&cx.show(name).await.key, name);
    }
    if cx.store().capability().list {
        assert_eq!(cx.list(cx.prefix()).await.len(), names.len());
        assert_eq!(cx.names(names[0].as_str()).await, names[..1]);
    }
    for lease in leases {
        lease.end().await;
    }
}

pub(super) async fn the_longest_names_of_wide_characters_work(cx: &Context) {
    let mut name = cx.prefix().to_owned();
    while name.len() + 4 <= Key::MAX_BYTES {
        name.push('🔒');
    }
    let name = key(&name);
    let party = cx.party(&name).owner("o");
    let lease = party.take().await;
    assert_eq!(cx.holders(&name).await, ["o"]);
    lease.end().await;
}

pub(super) async fn owner_and_metadata_come_back_as_they_were_given(cx: &Context) {
    let longest_owner = "ö".repeat(OwnerName::MAX_BYTES / 2);
    let longest_metadata = "€".repeat(Metadata::MAX_BYTES / 3);
    let texts = [
        "",
        " ",
        "a:b",
        "a|b,c;d",
        "\0",
        "a\0b",
        "\n\r\t",
        "\u{1b}[2J",
        "\u{202e}abc",
        "\"quoted\"",
        "\\",
        "{\"json\":[1,2]}",
        "%s%d",
        "$(reboot)",
        "日本語 🔒",
        "\u{7f}\u{80}\u{9f}",
        "0123456789abcdef:x",
        "-",
        "*1",
    ];
    for text in texts.iter().copied().chain([longest_owner.as_str()]) {
        let metadata = if text.len() > 100 { &longest_metadata } else { text };
        let name = cx.key();
        let lease = cx.party(&name).owner(text).metadata(metadata).take().await;
        let shown = cx.show(&name).await.holders[0].clone();
        assert_eq!((shown.owner.as_str(), shown.metadata.as_str()), (text, metadata));
        let met = cx.party(&name).fail().await.holder.expect("it has a holder");
        assert_eq!((met.owner.as_str(), met.metadata.as_str()), (text, metadata));
        if cx.store().capability().queue {
            let waiter = cx.party(&name).owner(text).metadata(metadata).queued();
            let met = waiter.wait().await.holder.expect("it has a holder");
            assert_eq!((met.owner.as_str(), met.metadata.as_str()), (text, metadata));
            let shown = cx.show(&name).await.waiters[0].clone();
            assert_eq!((shown.owner.as_str(), shown.metadata.as_str()), (text, metadata));
            lease.end().await;
            let shown = cx.show(&name).await.holders[0].clone();
            assert_eq!((shown.owner.as_str(), shown.metadata.as_str()), (text, metadata));
            waiter.leave().await;
        } else {
            lease.end().await;
        }
    }
}

pub(super) async fn the_longest_and_the_shortest_ttl_are_kept(cx: &Context) {
    let name = cx.key();
    let lease = cx.party(&name).ttl(leasehold_core::Ttl::MAX.duration()).take().await;
    let remaining = cx.show(&name).await.holders[0].remaining;
    assert!(remaining + LONG * 4 > leasehold_core::Ttl::MAX.duration(), "{remaining:?}");
    lease.end().await;
    let shortest = cx.party(&name).ttl(leasehold_core::Ttl::MIN.duration());
    match shortest.ask_in_time().await {
        Some(Acquire::Granted(_)) => cx.until_idle(&name).await,
        Some(other) => panic!("{other:?}"),
        None => drop(shortest.leave().await),
    }
}
