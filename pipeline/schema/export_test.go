package schema

import (
	"context"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5"
)

// MigrateFiles is Migrate with other files than the embedded ones.
func MigrateFiles(ctx context.Context, conn *pgx.Conn, files fs.FS, log *slog.Logger) (int, error) {
	all, err := load(files)
	if err != nil {
		return 0, err
	}
	return migrate(ctx, conn, all, log)
}
