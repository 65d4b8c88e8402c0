//! Looks at the server and its settings, and judges what they mean for a lock.

use std::time::{Duration, SystemTime};

use leasehold_core::doctor::{CLOCK, Finding, IDENTITY, PERSISTENCE, Severity, WAKE};
use leasehold_core::escape;
use leasehold_core::{Error, Reason};

use crate::classify::{Deadline, Fault};
use crate::pool::Pooler;
use crate::row::get;
use crate::setup;
use crate::store::PostgresStore;

/// A difference of the clocks that people should know.
const CLOCK_APART: Duration = Duration::from_secs(5);
/// A transaction that is open for this long keeps dead rows.
const LONG_TRANSACTION: Duration = Duration::from_secs(10 * 60);
/// From this share of sessions on, new ones may soon be refused.
const SESSIONS_LEFT: i64 = 10;
/// With free room in each page, nearly all updates stay within it.
const WITHIN_PAGE: f64 = 0.9;
/// A statement that waits for a disk or a standby may take this long.
const LIMIT_MIN_MS: i32 = 1_000;
/// Each of them is woken by each notification.
const LISTENERS_MANY: i64 = 200;

/// The facts about a server.
pub(crate) struct Facts {
    server: String,
    number: i32,
    encoding: String,
    fsync: bool,
    full_page_writes: bool,
    standbys: String,
    now: SystemTime,
    pub(crate) alive_for: Option<Duration>,
    grants_in: Option<Duration>,
    epoch: Option<i32>,
    sessions_left: i64,
    listeners: i64,
    longest_transaction: Duration,
    queue: f64,
    /// Synchronous standbys that are attached, if the user may see them.
    synchronised: Option<i64>,
    longest_prepared: Duration,
    /// Replication slots that keep dead rows for a standby that is away.
    slots: Option<String>,
    /// The share of updates that stayed within their page.
    within_page: Option<f64>,
    /// Limits of the role, 0 for none.
    statement_ms: i32,
    lock_ms: i32,
    /// Sessions that have had rows of the table locked for long.
    lockers: Option<String>,
    /// The bodies of the functions in the schema.
    functions: Vec<String>,
}

impl Facts {
    pub(crate) fn is_durable(&self) -> bool {
        self.fsync
    }
}

impl PostgresStore {
    pub(crate) async fn facts(&self, deadline: Deadline) -> Result<Facts, Fault> {
        let rows = self.shared.pool.ask(0, &self.shared.statements.examine, &[], deadline).await?;
        let none =
            || Error::new(leasehold_core::ErrorKind::Protocol, "the server's answer has no row");
        let row = rows.first().ok_or_else(none)?;
        let now: SystemTime = get(row, "now")?;
        let since: Option<SystemTime> = get(row, "since")?;
        let grants_from: Option<SystemTime> = get(row, "grants_from")?;
        let length = |column| -> Result<Duration, Error> {
            let seconds: Option<f64> = get(row, column)?;
            Ok(Duration::try_from_secs_f64(seconds.unwrap_or_default()).unwrap_or_default())
        };
        Ok(Facts {
            server: get(row, "server")?,
            number: get(row, "number")?,
            encoding: get(row, "encoding")?,
            fsync: get::<&str>(row, "fsync")? == "on",
            full_page_writes: get::<&str>(row, "full_page_writes")? == "on",
            standbys: get(row, "standbys")?,
            now,
            alive_for: since.map(|since| now.duration_since(since).unwrap_or_default()),
            grants_in: grants_from
                .and_then(|from| from.duration_since(now).ok())
                .filter(|left| !left.is_zero()),
            epoch: get(row, "epoch")?,
            sessions_left: get(row, "sessions_left")?,
            listeners: get(row, "listeners")?,
            longest_transaction: length("longest_transaction")?,
            queue: get(row, "queue")?,
            synchronised: get(row, "synchronised")?,
            longest_prepared: length("longest_prepared")?,
            slots: get(row, "slots")?,
            within_page: get(row, "within_page")?,
            statement_ms: get(row, "statement_ms")?,
            lock_ms: get(row, "lock_ms")?,
            lockers: get(row, "lockers")?,
            functions: get(row, "functions")?,
        })
    }

    pub(crate) async fn look(&self, deadline: Deadline) -> Result<Vec<Finding>, Fault> {
        let facts = match self.facts(deadline).await {
            Err(fault) if fault.error.reason() == Some(Reason::NotPrimary) => {
                let (found, means) =
                    ("the server is a standby", "it takes no writes, so no lock works here");
                let finding = Finding::new(Severity::Problem, "role", found, means);
                return Ok(vec![finding.advise("name the primary in the URL, or all hosts")]);
            }
            facts => facts?,
        };
        let address = &self.shared.pool.dial.address;
        let mut findings = judged(&facts, address.is_async);
        if setup::bodies(&address.schema).iter().any(|body| !facts.functions.contains(body)) {
            let finding = Finding::new(
                Severity::Warning,
                "functions",
                "the functions in the schema are not those of this version",
                "locks work as the version says that made them",
            );
            findings.push(finding.advise("apply the SQL of `leasehold setup`"));
        }
        findings.extend(self.shared.pool.pooler(deadline).await?.map(pooler));
        findings.push(Finding::new(
            Severity::Note,
            IDENTITY,
            format!("schema {} of {}", address.schema, escape::terminal(&self.shared.location)),
            "all clients of this schema share its locks",
        ));
        findings.push(match (&address.tls, address.location().contains("%2F")) {
            (Some(_), _) => Finding::new(
                Severity::Fine,
                "tls",
                "the connections have TLS",
                "tokens can not be read on the way",
            ),
            (None, true) => Finding::new(
                Severity::Fine,
                "tls",
                "the connection is a socket",
                "it stays on this machine",
            ),
            (None, false) => Finding::new(
                Severity::Note,
                "tls",
                "the connections have no TLS",
                "on another machine than this, others on the way could read passwords and tokens",
            ),
        });
        let ours = leasehold_clock::wall::unix_micros();
        let theirs =
            facts.now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros());
        let apart = Duration::from_micros(ours.abs_diff(u64::try_from(theirs).unwrap_or(u64::MAX)));
        let shown = leasehold_core::length::measured(Duration::from_secs(apart.as_secs()));
        findings.push(if apart < CLOCK_APART {
            Finding::new(Severity::Fine, CLOCK, "the server's clock agrees with this machine's", "times can be compared")
        } else {
            Finding::new(
                Severity::Note,
                CLOCK,
                format!("the server's clock differs from this machine's by {shown}"),
                "leases are not affected: they run on the server's clock, and are counted by the holder's",
            )
        });
        findings.push(self.wake_finding());
        Ok(findings)
    }

    fn wake_finding(&self) -> Finding {
        match self.ear_trouble() {
            None => Finding::new(Severity::Note, WAKE, "the URL has listen=none", "waiters poll"),
            Some(Ok(())) => Finding::new(
                Severity::Fine,
                WAKE,
                "waiters are woken by LISTEN and NOTIFY",
                "a release notifies the next waiter at once",
            ),
            Some(Err(trouble)) => Finding::new(
                Severity::Warning,
                WAKE,
                format!("no notification arrives: {trouble:#}"),
                "waiters poll, and learn of a release up to a third of their heartbeat timeout later",
            )
            .advise("behind a pooler, set listen= to a URL of the server itself"),
        }
    }
}

fn pooler(pooler: Pooler) -> Finding {
    let (found, means) = match pooler {
        Pooler::ByTransaction => (
            "a pooler lends a session for each transaction",
            "locks work; notifications need listen= with a URL of the server itself",
        ),
        Pooler::ByStatement => (
            "a pooler lends a session for each statement",
            "locks work, and slowly where many processes change one; notifications need listen= with a URL of the \
             server itself",
        ),
    };
    Finding::new(Severity::Note, "pooler", found, means)
}

fn shown_ms(limit: i32) -> String {
    match u64::try_from(limit).unwrap_or_default() {
        0 => "not set".to_owned(),
        limit => leasehold_core::length::measured(Duration::from_millis(limit)).to_string(),
    }
}

fn judged(facts: &Facts, is_async: bool) -> Vec<Finding> {
    let Facts { server, number, .. } = facts;
    let server = escape::terminal(server);
    let mut findings = vec![if *number >= 130_000 {
        Finding::new(
            Severity::Fine,
            "version",
            format!("PostgreSQL {server}"),
            "it has all that locks need",
        )
    } else {
        Finding::new(
            Severity::Problem,
            "version",
            format!("PostgreSQL {server}"),
            "it is older than 13, and not tested",
        )
        .advise("use PostgreSQL 13 or later")
    }];
    let mut add = |severity, topic, found: String, means: &'static str, advice: &'static str| {
        let finding = Finding::new(severity, topic, found, means);
        findings.push(if advice.is_empty() { finding } else { finding.advise(advice) });
    };
    if facts.encoding != "UTF8" {
        let found = format!("the encoding is {}", escape::terminal(&facts.encoding));
        add(
            Severity::Problem,
            "encoding",
            found,
            "some names can't be stored",
            "use a database with UTF8",
        );
    }
    if !facts.fsync || !facts.full_page_writes {
        let means = "a crash of the machine may damage the tables";
        let found = "fsync or full_page_writes is off".to_owned();
        add(Severity::Problem, PERSISTENCE, found, means, "turn both on");
    } else if is_async {
        let found = "durability=async: commits do not wait for the disk".to_owned();
        let means = "after a crash no lease is granted until the longest one has ended";
        add(Severity::Note, PERSISTENCE, found, means, "");
    } else {
        let means = "leases survive a restart and a crash";
        add(Severity::Fine, PERSISTENCE, "each commit is durable".to_owned(), means, "");
    }
    if facts.standbys.is_empty() {
        let means = "a promoted standby may lack the last leases; locks there wait until the longest lease has ended";
        add(Severity::Note, "replication", "no synchronous standby".to_owned(), means, "");
    } else if facts.synchronised == Some(0) {
        let found = "synchronous standbys are named, and none is attached".to_owned();
        let means = "each commit waits for one, and locks wait with it";
        add(Severity::Warning, "replication", found, means, "start the standby");
    } else {
        let means = "a promoted standby has every lease that was granted";
        add(Severity::Fine, "replication", "commits wait for a standby".to_owned(), means, "");
    }
    if let Some(left) = facts.grants_in {
        let left =
            leasehold_core::length::measured(Duration::from_secs(left.as_secs().saturating_add(1)));
        let found = format!("no lease is granted for another {left}");
        let means = "the server was replaced by one that may lack leases; held leases are renewed";
        add(Severity::Warning, "warm-up", found, means, "");
    }
    if let (Some(epoch), Some(age)) = (facts.epoch, facts.alive_for) {
        let age = leasehold_core::length::measured(Duration::from_secs(age.as_secs().max(1)));
        let found = format!("fail-over epoch {epoch} began {age} ago");
        add(Severity::Note, "epoch", found, "each crash or fail-over begins another", "");
    }
    if facts.sessions_left < SESSIONS_LEFT {
        let found = format!("{} sessions are left of max_connections", facts.sessions_left);
        let means = "new clients may be refused";
        add(Severity::Warning, "sessions", found, means, "raise max_connections, or use a pooler");
    }
    if facts.listeners > LISTENERS_MANY {
        let found = format!("{} processes listen", facts.listeners);
        let means = "each notification wakes all of them, which delays it";
        add(Severity::Warning, "listeners", found, means, "give locks a database of their own");
    }
    if facts.queue > 0.5 {
        let found = format!("the queue of notifications is full to {:.0} %", facts.queue * 100.0);
        let means = "a full queue refuses notifications";
        add(
            Severity::Warning,
            "queue",
            found,
            means,
            "end the session that does not read its notifications",
        );
    }
    if facts.longest_transaction > LONG_TRANSACTION {
        let open = leasehold_core::length::measured(Duration::from_secs(
            facts.longest_transaction.as_secs(),
        ));
        let found = format!("a transaction is open for {open}");
        let means = "dead rows of busy locks stay until it ends, which slows these locks down";
        add(Severity::Warning, "snapshots", found, means, "end it; see pg_stat_activity");
    }
    if facts.longest_prepared > LONG_TRANSACTION {
        let found = "a prepared transaction was left open".to_owned();
        let means = "dead rows of busy locks stay until it ends, which slows these locks down";
        add(Severity::Warning, "snapshots", found, means, "end it; see pg_prepared_xacts");
    }
    if let Some(slots) = &facts.slots {
        let found = format!("no standby uses these replication slots: {}", escape::terminal(slots));
        let means = "they keep dead rows of busy locks, which slows these locks down";
        add(Severity::Warning, "snapshots", found, means, "drop those that are left over");
    }
    let (statement, lock) = (shown_ms(facts.statement_ms), shown_ms(facts.lock_ms));
    let found = format!("statement_timeout is {statement}, lock_timeout {lock}");
    if (1..LIMIT_MIN_MS).contains(&facts.statement_ms) {
        let means = "statements fail that wait for the disk or a standby a little longer";
        add(Severity::Warning, "limits", found, means, "set statement_timeout to 10s for the role");
    } else {
        let means = "a client cancels its statements itself if they take too long";
        add(Severity::Note, "limits", found, means, "");
    }
    if let Some(lockers) = &facts.lockers {
        let found =
            format!("sessions have had locks' rows locked for long: {}", escape::terminal(lockers));
        let means = "these locks are granted to no other holder until the transaction ends";
        let advice = "if it does not work under `hold`, end it; see pg_stat_activity";
        add(Severity::Warning, "rows", found, means, advice);
    }
    if let Some(share) = facts.within_page.filter(|share| *share < WITHIN_PAGE) {
        let found = format!("{:.0} % of updates stay within their page", share * 100.0);
        let means = "the others change the index too, which costs time and room";
        let advice = "leave the table's fillfactor at 50, and end old transactions";
        add(Severity::Warning, "updates", found, means, advice);
    }
    findings
}
