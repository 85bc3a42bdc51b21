-- The two roles of a deployment, for the database that psql is connected to. Run it as a
-- superuser before the first migration; running it again changes only the passwords.
--
--   ctxsnap_owner    owns the database and its tables; only `ctxsnap migrate` and the
--                    retention commands log in with it
--   ctxsnap_service  what the service logs in with; it owns nothing, and row-level
--                    security holds for it
--
-- The passwords come from CTXSNAP_OWNER_PASSWORD and CTXSNAP_SERVICE_PASSWORD in psql's
-- environment, so that they show in no list of processes:
--
--   psql -X -f deploy/roles.sql "$SUPERUSER_URL"

\set ON_ERROR_STOP on
\set QUIET on
\getenv owner_password CTXSNAP_OWNER_PASSWORD
\getenv service_password CTXSNAP_SERVICE_PASSWORD

\if :{?owner_password}
\else
    DO $$BEGIN RAISE EXCEPTION 'CTXSNAP_OWNER_PASSWORD is not set'; END$$;
\endif
\if :{?service_password}
\else
    DO $$BEGIN RAISE EXCEPTION 'CTXSNAP_SERVICE_PASSWORD is not set'; END$$;
\endif

-- Statements with a password in them stay out of the server's log.
SET log_statement = 'none';
SET log_min_duration_statement = -1;
SET log_min_error_statement = 'panic';
SET password_encryption = 'scram-sha-256';

SELECT format('CREATE ROLE %I', name)
FROM unnest(ARRAY['ctxsnap_owner', 'ctxsnap_service']) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)
\gexec

ALTER ROLE ctxsnap_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS
    PASSWORD :'owner_password';
ALTER ROLE ctxsnap_service LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS
    PASSWORD :'service_password';

SELECT current_database() AS database \gset
ALTER DATABASE :"database" OWNER TO ctxsnap_owner;
REVOKE ALL ON DATABASE :"database" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"database" TO ctxsnap_service;

-- Before PostgreSQL 15 everyone could create in `public`; an upgraded database may still
-- have it so. Rights on tables are given by the migrations, one by one.
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO ctxsnap_owner;
GRANT USAGE ON SCHEMA public TO ctxsnap_service;

-- Only a superuser may create it, and only the vector leg needs it.
SELECT 'CREATE EXTENSION IF NOT EXISTS vector'
WHERE EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector')
\gexec
