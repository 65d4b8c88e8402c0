//! The statements that a store sends, with the name of its schema.

use crate::setup;

/// One row of facts. Nothing in it needs more rights than locks do. A standby refuses it.
const EXAMINE: &str = "SELECT current_setting('server_version') AS server, \
    current_setting('server_version_num')::int AS number, \
    current_setting('server_encoding') AS encoding, current_setting('fsync') AS fsync, \
    current_setting('full_page_writes') AS full_page_writes, \
    current_setting('synchronous_standby_names') AS standbys, clock_timestamp() AS now, \
    (SELECT a.since FROM leasehold.alive a WHERE a.id = 1) AS since, \
    (SELECT a.grants_from FROM leasehold.alive a WHERE a.id = 1) AS grants_from, \
    (SELECT m.epoch FROM leasehold.meta m WHERE m.id = 1) AS epoch, \
    current_setting('max_connections')::bigint - (SELECT count(*) FROM pg_stat_activity) AS sessions_left, \
    (SELECT count(*) FROM pg_stat_activity s WHERE s.application_name = 'leasehold-listen') AS listeners, \
    (SELECT extract(epoch FROM max(clock_timestamp() - s.xact_start))::float8 FROM pg_stat_activity s \
        WHERE s.datname = current_database()) AS longest_transaction, \
    pg_notification_queue_usage() AS queue, \
    CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN \
        (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state IN ('sync', 'quorum')) END AS synchronised, \
    (SELECT extract(epoch FROM max(clock_timestamp() - p.prepared))::float8 FROM pg_prepared_xacts p \
        WHERE p.database = current_database()) AS longest_prepared, \
    (SELECT string_agg(s.slot_name, ', ') FROM pg_replication_slots s WHERE s.xmin IS NOT NULL AND NOT s.active) \
        AS slots, \
    (SELECT t.n_tup_hot_upd::float8 / t.n_tup_upd FROM pg_stat_user_tables t \
        WHERE t.relid = 'leasehold.lock'::regclass AND t.n_tup_upd > 1000) AS within_page, \
    (SELECT s.setting::int FROM pg_settings s WHERE s.name = 'statement_timeout') AS statement_ms, \
    (SELECT s.setting::int FROM pg_settings s WHERE s.name = 'lock_timeout') AS lock_ms, \
    (SELECT string_agg(DISTINCT format('%s of %s', s.pid, s.usename), ', ') \
        FROM pg_locks k JOIN pg_stat_activity s ON s.pid = k.pid AND s.datname = current_database() \
        WHERE k.relation = 'leasehold.lock'::regclass AND k.granted \
        AND k.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') \
        AND s.xact_start < clock_timestamp() - interval '5 seconds') AS lockers, \
    ARRAY(SELECT p.prosrc FROM pg_proc p WHERE p.pronamespace = \
        (SELECT c.relnamespace FROM pg_class c WHERE c.oid = 'leasehold.lock'::regclass)) AS functions";

/// The statements, with the name of the schema.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) read: String,
    pub(crate) read_all: String,
    pub(crate) lock: String,
    pub(crate) tell: String,
    pub(crate) take: String,
    pub(crate) release: String,
    pub(crate) renew: String,
    pub(crate) write: String,
    pub(crate) note_loss: String,
    pub(crate) adopt: String,
    pub(crate) forget: String,
    pub(crate) list: String,
    pub(crate) log_append: String,
    pub(crate) log_trim: String,
    pub(crate) log_read: String,
    pub(crate) examine: String,
}

impl Statements {
    pub(crate) fn of(schema: &str) -> Self {
        let sql = |text| setup::in_schema(text, schema);
        Self {
            note_loss: sql(
                "UPDATE leasehold.meta SET lossy = true WHERE id = 1 AND NOT lossy RETURNING leasehold.commit_1(0)::text",
            ),
            read: sql("SELECT * FROM leasehold.read_1($1)"),
            read_all: sql(
                "SELECT s.* FROM unnest($1) WITH ORDINALITY AS n(name, at), leasehold.read_1(n.name) s ORDER BY n.at",
            ),
            tell: sql(
                "SELECT pg_notify(n.c, n.t)::text FROM leasehold.lock l, unnest($3, $4) AS n(c, t) \
                 WHERE l.name = $1 AND l.version = $2",
            ),
            lock: sql("SELECT FROM leasehold.lock l WHERE l.name = $1 FOR NO KEY UPDATE"),
            take: sql("SELECT * FROM leasehold.take_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"),
            release: sql("SELECT * FROM leasehold.release_1($1,$2,$3,$4,$5)"),
            renew: sql("SELECT * FROM leasehold.renew_1($1,$2,$3,$4,$5,$6,$7,$8)"),
            write: sql(
                "SELECT leasehold.write_1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22)",
            ),
            adopt: sql("SELECT leasehold.adopt_1($1)::text"),
            forget: sql("SELECT leasehold.forget_1($1, $2)::text"),
            // No upper bound by a next prefix: any may be the last.
            list: sql(
                "SELECT l.name, s.* FROM leasehold.lock l, leasehold.read_1(l.name) s WHERE l.name >= $1 AND \
                 starts_with(l.name, $1) AND l.used_until > clock_timestamp() ORDER BY l.name",
            ),
            log_append: sql(
                "INSERT INTO leasehold.log (name, at, body) VALUES ($1, clock_timestamp(), jsonb_object($2))",
            ),
            log_trim: sql(
                "DELETE FROM leasehold.log l WHERE l.name = $1 AND l.id <= (SELECT o.id FROM leasehold.log o WHERE \
                 o.name = $1 ORDER BY o.id DESC OFFSET $2 LIMIT 1)",
            ),
            log_read: sql(
                "SELECT l.at, ARRAY(SELECT unnest(ARRAY[e.key, e.value]) FROM jsonb_each_text(l.body) e) AS fields \
                 FROM leasehold.log l WHERE l.name = $1 ORDER BY l.id DESC LIMIT $2",
            ),
            examine: sql(EXAMINE),
        }
    }
}
