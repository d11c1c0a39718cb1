"""What a person sees: tables, pictures, pages, progress."""
